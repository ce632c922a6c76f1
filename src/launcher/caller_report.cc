#include "launcher/caller_report.h"

#include "base/format.h"

namespace farandole {

CallerReport::CallerReport(Poller& poller, std::uint64_t tag, int descriptor)
    : poller_(poller), tag_(tag), is_wanted_(descriptor >= 0), sink_(descriptor) {}

void CallerReport::worker_started(int rank, pid_t pid) {
  write_line(format_text("started {} {}\n", rank, pid));
}

void CallerReport::worker_ended(int rank, const ProcessEnd& end) {
  const bool killed = end.signal != 0;
  write_line(format_text("ended {} {} {}\n", rank, killed ? "signal" : "code",
                         killed ? end.signal : end.code));
}

void CallerReport::report_first_cause(int rank, pid_t pid) {
  write_line(format_text("{}{} {}\n", kCauseLineBeginning, rank, pid));
}

void CallerReport::write_line(std::string_view line) {
  if (!is_wanted_) return;
  sink_.write(line);
  sink_writable();
}

void CallerReport::sink_writable() {
  sink_.flush();
  if (waits_for_sink_ == !sink_.empty()) return;
  waits_for_sink_ = !sink_.empty();
  if (waits_for_sink_)
    poller_.add(sink_.descriptor(), Poller::Interest::kWriting, tag_);
  else
    poller_.remove(sink_.descriptor());
}

}  // namespace farandole
