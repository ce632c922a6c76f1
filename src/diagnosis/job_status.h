// Job status: what a running job does now, as a table for people.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/rank_status.h"

namespace farandole {

struct JobStatus {
  pid_t pid = 0;  // of the process that the user has started
  std::string host;
  std::string command;  // of the workers
  TimePoint started{};
  TimePoint looked{};             // when all of this was so
  std::vector<RankStatus> ranks;  // by rank
};

struct TableStyle {
  int columns = 80;  // no line is longer
  bool colors = false;
};

// Pure. The lines have no ends: the job, a row for each rank, and the calls that wait.
std::vector<std::string> job_table(const JobStatus& job, const TableStyle& style);

}  // namespace farandole
