// CallerReport: tells the program that has started the job which processes the ranks are, how they
// end, and which of them was the first cause of a failure. A line each: `started RANK PID`,
// `ended RANK code N`, `ended RANK signal N`, `cause RANK`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "base/process_end.h"
#include "launcher/output_sink.h"
#include "launcher/poller.h"

namespace farandole {

// One thread. Never blocks: what the pipe has no room for is written by room_ready().
class CallerReport {
 public:
  // `descriptor` is borrowed; −1: nobody wants to know. The poller, which must outlive this, calls
  // with `tag` when there is room.
  CallerReport(Poller& poller, std::uint64_t tag, int descriptor);

  void worker_started(int rank, pid_t pid);
  void worker_ended(int rank, const ProcessEnd& how);
  void first_cause(int rank);

  void room_ready();
  bool everything_is_written() const { return sink_.empty(); }

 private:
  void tell(std::string_view line);

  Poller& poller_;
  std::uint64_t tag_;
  bool wanted_;
  bool waits_for_room_ = false;
  OutputSink sink_;
};

}  // namespace farandole
