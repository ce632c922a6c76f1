// Checks which libraries, frameworks and tools are installed.
#pragma once

#include <vector>

#include "doctor/doctor_check.h"

namespace farandole {

std::vector<Check> framework_checks();

// The first of these checks: Python, and our package and the frameworks in it, each with its
// version.
Check python_check();

}  // namespace farandole
