// `farandole status`: shows the jobs of this user that run on this host.
#pragma once

#include <string>

namespace farandole {

extern const char* const kStatusFooter;  // the last lines of the help text of `farandole status`

// `job` is the process id of a job's `farandole run`, or empty for all jobs. Returns the exit code:
// 0 if there is a job to show, 1 if there is none, 2 if `job` is not a process id.
int run_status(const std::string& job, bool as_json);

}  // namespace farandole
