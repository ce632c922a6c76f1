// Job list: the jobs of this user that run on this host, as their launchers' job sheets and their
// workers' flight records tell them. Nothing is sent to anybody, and nobody notices.
#pragma once

#include <sys/types.h>

#include <vector>

#include "diagnosis/job_status.h"

namespace farandole {

struct JobList {
  std::vector<JobStatus> jobs;    // by pid
  std::vector<pid_t> unreadable;  // launchers of another version, or that may not be looked at
};

// Blocks for as long as it takes to look through /proc. Jobs that begin or end meanwhile may be
// left out.
JobList running_jobs();

}  // namespace farandole
