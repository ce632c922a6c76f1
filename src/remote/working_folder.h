// The working directory of a job on several hosts.
#pragma once

#include <string>

#include "farandole/status.h"

namespace farandole {

// Returns the path of the working directory as the user's shell shows it. The kernel's path has no
// symbolic links any more, and may not exist on other hosts. Errors: kFixCall if the directory does
// not exist any more.
Result<std::string> working_folder();

}  // namespace farandole
