// Job list: the jobs of this user that run on this host. It reads the launchers' job sheets and the
// workers' flight records; it sends no message, so it does not disturb the jobs.
#pragma once

#include <sys/types.h>

#include <vector>

#include "diagnosis/job_status.h"

namespace farandole {

struct JobList {
  std::vector<JobStatus> jobs;    // by pid
  std::vector<pid_t> unreadable;  // launchers of another version, or whose memory we may not read
};

// Blocks while it searches /proc. Jobs that begin or end meanwhile may be left out.
JobList running_jobs();

}  // namespace farandole
