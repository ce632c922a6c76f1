// Names scripts: all programs make the same calls, with and without names, and wait at the same
// points. If a program waits for an unnamed call, it takes any of those in flight of the same
// operation. Each program polls its calls and drops handles at its own times.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that has its workers, groups and options.
void write_names_script(Random& random, Script& script);

}  // namespace farandole::sim
