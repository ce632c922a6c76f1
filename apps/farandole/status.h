// `farandole status`: the jobs of this user that run on this host.
#pragma once

#include <string>

namespace farandole {

extern const char* const kStatusFooter;  // of its help

// `job`: the process number of one job's `farandole run`, or empty for all. Returns the exit code:
// 0 when there is something to show, 1 when there is not, 2 when `job` is no process number.
int run_status(const std::string& job, bool as_json);

}  // namespace farandole
