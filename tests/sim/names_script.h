// Names scripts: all programs make the same calls and wait for the same ones, in one order, with
// names and without; but each looks at its calls and drops handles at times of its own.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that has its workers, groups and options.
void write_names_script(Random& random, Script& script);

}  // namespace farandole::sim
