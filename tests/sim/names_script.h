// Names scripts: all programs make the same calls, with and without names, and wait at the same
// points. If a program must wait for an unnamed call, it may wait for another unnamed call of the
// same operation instead. Each program polls its calls and drops handles at its own times.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that has its workers, groups and options.
void write_names_script(Random& random, Script& script);

}  // namespace farandole::sim
