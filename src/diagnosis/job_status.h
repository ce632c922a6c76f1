// Job status: what a running job does now, as a table for people.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/rank_status.h"

namespace farandole {

struct JobStatus {
  pid_t pid = 0;  // of the process that the user started
  std::string host;
  std::string command;  // of the workers
  TimePoint started{};
  TimePoint looked{};             // when this was read
  std::vector<RankStatus> ranks;  // by rank
};

struct TableStyle {
  int columns = 80;  // the longest allowed line
  bool colors = false;
};

// Returns the lines without newlines: first the job, then a row for each rank, then the calls that
// wait. Pure.
std::vector<std::string> job_table(const JobStatus& job, const TableStyle& style);

}  // namespace farandole
