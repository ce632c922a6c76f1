// Checks of the kernel features that jobs need.
#pragma once

#include <vector>

#include "doctor/doctor_check.h"

namespace farandole {

std::vector<Check> kernel_checks();

}  // namespace farandole
