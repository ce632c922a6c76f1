// Checks of this machine's resources and limits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/doctor_check.h"
#include "farandole/status.h"

namespace farandole {

std::vector<Check> machine_checks();

// What the check `sealing` says. Data between hosts is sealed by a core of the sender and opened by
// one of the receiver. `measure` returns bytes per second; it runs several times, and the best
// result counts, because other processes may interrupt it. `processor` is the text of
// /proc/cpuinfo.
Finding finding_on_sealing(const std::function<Result<double>()>& measure,
                           const std::string& processor);

}  // namespace farandole
