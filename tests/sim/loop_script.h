// Loop scripts: iterations that repeat a few variants, as training loops do. After some iterations,
// the groups have learned all variants. After this, the members must not send control messages.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// If a loop has a period of at most four iterations, the predictor learns the loop in at most this
// number of iterations.
inline constexpr int kIterationsToLearn = 40;

// Adds the calls and the programs to a script that already has workers, groups and options.
void write_loop_script(Random& random, Script& script);

}  // namespace farandole::sim
