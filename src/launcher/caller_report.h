// CallerReport: tells the program that started the job the process id of each rank, how each rank
// ended, and which rank failed first. It writes one line for each event: `started RANK PID`,
// `ended RANK code N`, `ended RANK signal N`, `cause RANK PID`. In an elastic job, the rank is the
// slot of the worker, and a slot may have several workers, one after another.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "base/poller.h"
#include "base/process_end.h"
#include "output/output_sink.h"

namespace farandole {

// The beginning of the line that names the rank that failed first.
inline constexpr std::string_view kCauseLineBeginning = "cause ";

// Only one thread may use it. It never blocks. Lines that do not fit in the pipe are kept until
// sink_writable() is called.
class CallerReport {
 public:
  // `descriptor` is borrowed; if it is −1, the functions do nothing. `poller` must outlive this
  // object. The poller reports `tag` when the pipe has room again; then call sink_writable().
  CallerReport(Poller& poller, std::uint64_t tag, int descriptor);

  void worker_started(int rank, pid_t pid);
  void worker_ended(int rank, const ProcessEnd& end);
  void report_first_cause(int rank, pid_t pid);
  // Writes a line that the launcher of another host has written.
  void pass_on(std::string_view line) { write_line(line); }

  void sink_writable();
  bool everything_is_written() const { return sink_.empty(); }

 private:
  void write_line(std::string_view line);

  Poller& poller_;
  std::uint64_t tag_;
  bool is_wanted_;
  bool waits_for_sink_ = false;
  OutputSink sink_;
};

}  // namespace farandole
