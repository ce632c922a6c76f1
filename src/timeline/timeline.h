// Timeline: what one rank does and when, in a file for people (docs/howto/timeline.md). Any thread
// notes events in memory; the thread "farandole-trace", which is there only while a timeline is
// on, makes text of them and writes it. So a slow disk delays no call: what it cannot take is left
// out, and the file says so.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/guarded.h"
#include "base/log.h"
#include "timeline/trace_events.h"
#include "timeline/trace_file.h"
#include "timeline/trace_text.h"

namespace farandole {

class Timeline {
 public:
  struct Options {
    TraceText::Rank rank;
    std::size_t bytes_max = 0;  // of the file; each rank has its share
  };
  struct Job {
    std::string name;       // see TraceHead
    std::int64_t life = 1;  // counts the engines that this process has had in the job
  };
  // All that is borrowed outlives this.
  Timeline(const Options& options, const Clock& clock, const Log& log);
  ~Timeline();  // close()
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // From now on everything goes into this file; one that was on is stopped. Any thread. Blocks for
  // as long as the disk takes. Errors: as TraceFile::open(); kStop (no thread), kFixCall after
  // close(). An error later on is logged, and ends the timeline.
  Status start(const std::string& path, const Job& job, bool mark_cycles = false);
  // All that was noted is in the file. Does nothing when none is on.
  void stop();
  // Stops for good.
  void close();
  // In the child of a fork, where none of the other calls may be made. Takes no lock.
  void abandon_after_fork();

  // Off, they cost one look; on, they take a lock that is never held for long, and no memory. The
  // events of one call come in order.
  void submitted(Handle handle, const Submission& submission, TimePoint now) {
    if (is_on()) [[unlikely]]
      note_submitted(handle, submission, now);
  }
  void running(Handle handle, TimePoint now) {
    if (is_on()) [[unlikely]]
      note_change(handle, TraceEvent::Kind::kRunning, now);
  }
  void finished(Handle handle, bool well, TimePoint now) {
    if (is_on()) [[unlikely]]
      note_change(handle, well ? TraceEvent::Kind::kDone : TraceEvent::Kind::kFailed, now);
  }

 private:
  struct Pending {
    TraceBuffer events{0};
    bool writer_sleeps = false;  // until the first event
    bool stopping = false;
  };
  struct Control {
    bool closed = false;
  };

  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void note_submitted(Handle handle, const Submission& submission, TimePoint now);
  void note_change(Handle handle, TraceEvent::Kind kind, TimePoint now);
  template <class Add>
  void note(Add add);
  Status open(const std::string& path, const Job& job, bool mark_cycles);
  // The holder of control_ only.
  void stop_writer();

  // The thread "farandole-trace".
  void run();
  bool collect(TraceBuffer& batch);
  Status write(const TraceBuffer& batch, bool is_last);
  void tell(const Status& status) const;

  Options options_;
  const Clock& clock_;
  const Log& log_;
  Guarded<Control> control_;  // held while a timeline is started or stopped
  std::thread writer_;        // of the holder of control_
  // Of the thread while there is one, else of the holder of control_.
  std::optional<TraceFile> file_;
  TraceText text_;
  TraceBuffer batch_{0};

  Guarded<Pending> pending_;
  std::atomic<bool> on_ = false;
};

}  // namespace farandole
