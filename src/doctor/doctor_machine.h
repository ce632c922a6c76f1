// Checks of this machine's resources and limits.
#pragma once

#include <vector>

#include "doctor/doctor_check.h"

namespace farandole {

std::vector<Check> machine_checks();

}  // namespace farandole
