// Which libraries, frameworks and tools are there.
#pragma once

#include <vector>

#include "doctor_check.h"

namespace farandole {

std::vector<Check> framework_checks();

}  // namespace farandole
