// Failure box: what the user reads at the end of a failed job. A frame with the first cause in it:
// which worker, how it ended, what it did last, and what became of the others.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process_end.h"
#include "timeline/flight_record.h"

namespace farandole {

// How many processes the kernel has killed because memory had run out.
struct MemoryKills {
  std::int64_t in_group = 0;    // in the worker's own memory cgroup
  std::int64_t on_machine = 0;  // everywhere, those included
};

// What is known of a worker when it has ended.
struct WorkerEnd {
  ProcessEnd how;
  FlightReport record;
  MemoryKills memory_kills;  // shortly before it ended
  TimePoint at{};
};

struct Failure {
  int rank = 0;
  pid_t pid = 0;
  WorkerEnd end;
  // It had left the job, but did not end before we ended it.
  bool ended_by_us = false;
  int exit_code = 1;   // of the job
  std::string others;  // one line; empty when there were none
};

struct BoxStyle {
  int columns = 80;  // 80 to 100 of them are used; fewer only on a narrower terminal
  bool colors = false;
};

// Pure. The lines have no ends.
std::vector<std::string> failure_box(const Failure& failure, const BoxStyle& style);

}  // namespace farandole
