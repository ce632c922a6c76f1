// Free scripts: the phases of such a job all differ, or only some of them repeat.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that already has workers, groups and options.
void write_free_script(Random& random, Script& script);

}  // namespace farandole::sim
