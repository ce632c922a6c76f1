// Job list: lists the jobs of this user that run on this host. The search only reads the launchers'
// job sheets and the workers' flight records, so it does not disturb the jobs.
#pragma once

#include <sys/types.h>

#include <vector>

#include "diagnosis/job_status.h"

namespace farandole {

struct JobList {
  std::vector<JobStatus> jobs;  // by pid
  // Launchers whose jobs are not listed, because they have another version or protected memory.
  std::vector<pid_t> unreadable_launchers;
};

// Blocks while it searches /proc. Jobs that begin or end during the search may be missing.
JobList running_jobs();

}  // namespace farandole
