// Checks which libraries, frameworks and tools are installed.
#pragma once

#include <vector>

#include "doctor_check.h"

namespace farandole {

std::vector<Check> framework_checks();

}  // namespace farandole
