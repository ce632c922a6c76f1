// What this machine has, and lets us have.
#pragma once

#include <vector>

#include "doctor_check.h"

namespace farandole {

std::vector<Check> machine_checks();

}  // namespace farandole
