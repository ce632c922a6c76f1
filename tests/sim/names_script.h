// Names scripts: all programs make the same calls, with and without names, and wait for the same
// calls in the same order. But each program polls its calls and drops handles at its own times.
// Where it waits for a call without a name, it chooses one of those in flight of the same
// operation.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that has its workers, groups and options.
void write_names_script(Random& random, Script& script);

}  // namespace farandole::sim
