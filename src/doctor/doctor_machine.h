// Checks of this machine's resources and limits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "doctor/doctor_check.h"
#include "farandole/status.h"

namespace farandole {

std::vector<Check> machine_checks();

// Returns the finding of the check `sealing`. A core of the sender seals (encrypts) the data for
// another host. A core of the receiver opens the data. `measure` returns bytes per second; it runs
// several times, and the best result counts, because other processes may interrupt it. `processor`
// is the text of /proc/cpuinfo.
Finding finding_on_sealing(const std::function<Result<double>()>& measure,
                           const std::string& processor);

}  // namespace farandole
