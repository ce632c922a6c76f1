// Checks which libraries, frameworks and tools are installed.
#pragma once

#include <vector>

#include "doctor/doctor_check.h"

namespace farandole {

std::vector<Check> framework_checks();

// Returns the first check of framework_checks(). It finds Python, our package and the frameworks,
// each with its version.
Check python_check();

}  // namespace farandole
