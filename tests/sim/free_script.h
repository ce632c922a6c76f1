// Free scripts: every phase of the job brings something else, or something like it again.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that has its workers, groups and options.
void write_free_script(Random& random, Script& script);

}  // namespace farandole::sim
