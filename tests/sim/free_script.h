// Free scripts: all phases of the job differ, or only some phases repeat.
#pragma once

#include "random.h"
#include "script.h"

namespace farandole::sim {

// Adds the calls and the programs to a script that already has workers, groups and options.
void write_free_script(Random& random, Script& script);

}  // namespace farandole::sim
