// The working directory of a job on several hosts.
#pragma once

#include <string>

#include "farandole/status.h"

namespace farandole {

// Returns the path of the working directory that the user's shell has. The kernel's path is
// different if there are links in it, and other hosts may not have the kernel's path. Errors:
// kFixCall if the directory does not exist any more.
Result<std::string> working_folder();

}  // namespace farandole
