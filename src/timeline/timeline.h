// Timeline: records what one rank does and when, in a file for people (docs/howto/timeline.md). Any
// thread notes events in memory. The thread "farandole-trace", which exists only while a timeline
// is on, formats and writes them. So a slow disk delays no call: events that it cannot take are
// left out, and the file says so.
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
    std::size_t bytes_max = 0;  // of the whole file; each rank has its share
  };
  struct Job {
    std::string name;       // see TraceHead
    std::int64_t life = 1;  // counts the engines that this process has had in the job
  };
  // All references must outlive this object.
  Timeline(const Options& options, const Clock& clock, const Log& log);
  ~Timeline();  // close()
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Starts a timeline in this file; stops the one that was on. Any thread. Blocks for as long as
  // the disk takes. Errors: those of TraceFile::open(); kStop if there is no thread; kFixCall after
  // close(). A later error is logged and ends the timeline.
  Status start(const std::string& path, const Job& job, bool mark_cycles = false);
  // Stops the timeline. All noted events are in the file afterwards. Does nothing if none is on.
  void stop();
  // Stops for good.
  void close();
  // For the child of a fork, which must not call any other function. Takes no lock.
  void abandon_after_fork();

  // Notes an event. Costs one look at a flag if no timeline is on. Otherwise takes a lock that is
  // only held briefly, and allocates nothing. The events of one call must come in order.
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
    bool writer_sleeps = false;  // until the first event comes
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
  // Only the holder of control_ may call it.
  void stop_writer();

  // The body of the thread "farandole-trace".
  void run();
  bool collect(TraceBuffer& batch);
  Status write(const TraceBuffer& batch, bool is_last);
  void tell(const Status& status) const;

  Options options_;
  const Clock& clock_;
  const Log& log_;
  Guarded<Control> control_;  // held while a timeline is started or stopped
  std::thread writer_;        // belongs to the holder of control_
  // Belongs to the thread while there is one, otherwise to the holder of control_.
  std::optional<TraceFile> file_;
  TraceText text_;
  TraceBuffer batch_{0};

  Guarded<Pending> pending_;
  std::atomic<bool> on_ = false;
};

}  // namespace farandole
