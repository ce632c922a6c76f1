// Job status: what a running job does now, shown as a table by `farandole status`.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "diagnosis/rank_status.h"

namespace farandole {

struct JobStatus {
  pid_t pid = 0;  // the process that the user started
  std::string host;
  std::string command;  // the command line of the workers
  TimePoint started{};
  TimePoint read_at{};  // when the status was read
  int size = 0;         // the number of ranks on all hosts
  int local_size = 0;   // the number of ranks on this host
  int first_rank = 0;   // the rank of this host's first worker
  // The ranks of this host, beginning with first_rank. On node 0, the ranks of the other hosts
  // follow.
  std::vector<RankStatus> ranks;
};

struct TableStyle {
  int columns = 80;  // the maximum length of a line
  bool has_colors = false;
};

// Returns the lines of the table, without newlines: the job, a row for each rank, and a line for
// each call that waits. A pure function.
std::vector<std::string> job_table(const JobStatus& job, const TableStyle& style);

}  // namespace farandole
