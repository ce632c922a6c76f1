// Loop scripts: iterations that repeat a few variants, as training loops do. After some of them
// nothing new can happen, and from there on no control message may be sent.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// So many iterations are enough to learn what repeats, for up to four variants.
inline constexpr int kIterationsToLearn = 40;

// Adds the calls and the programs to a script that has its workers, groups and options.
void write_loop_script(Random& random, Script& script);

}  // namespace farandole::sim
