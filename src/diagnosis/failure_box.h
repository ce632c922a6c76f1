// Failure box: the framed text that the launcher prints at the end of a failed job. It says which
// worker failed first, how that worker ended, what it did last, and how the other workers ended.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process_end.h"
#include "timeline/flight_record.h"

namespace farandole {

// How many processes the kernel has killed for lack of memory.
struct MemoryKills {
  std::int64_t in_cgroup = 0;   // in the worker's own memory cgroup
  std::int64_t on_machine = 0;  // on the whole machine, including in_cgroup
};

// What the launcher knows about one worker that has ended.
struct WorkerEnd {
  ProcessEnd process_end;
  FlightReport record;
  MemoryKills memory_kills;  // counted shortly before the worker ended
  TimePoint at{};
};

struct Failure {
  int rank = 0;
  pid_t pid = 0;
  WorkerEnd end;
  std::string host{};  // empty if the job is on one host only
  // True if the launcher killed the worker because it had left the job but did not exit.
  bool ended_by_launcher = false;
  int exit_code = 1;       // the exit code of the job
  std::string other_ends;  // how the other workers ended, in one line; empty if there were none
};

struct BoxStyle {
  // The width of the terminal. The box has the same width, but at least 40 and at most 100 columns.
  int columns = 80;
  bool has_colors = false;
};

// Returns the lines of the box, without newlines. A pure function.
std::vector<std::string> failure_box(const Failure& failure, const BoxStyle& style);

}  // namespace farandole
