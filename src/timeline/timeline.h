// Timeline: records in a file what one rank does and when (docs/howto/timeline.md). Any thread can
// record events in memory. The thread "farandole-trace", which exists only while a timeline is on,
// formats them and writes them to the file. So a slow disk delays no call. If the disk is too slow,
// events are dropped, and the file says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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

// Returns TraceHead::epoch_us for a file whose zero point was `age` ago.
std::int64_t microseconds_since_1970(Duration age);

class Timeline {
 public:
  // The state that the timelines of one process share. In an elastic job, a process is a member of
  // several groups, one after another. Because of this state, each tensor has one track for all
  // groups, and the timeline of the next group continues the previous timeline.
  struct SharedState {
    TraceText text;
    // The path of the timeline's file; start() makes it absolute. Empty if no timeline is on.
    std::string path{};
    bool mark_cycles = false;
  };
  struct Options {
    TraceText::Rank rank;
    std::size_t bytes_max = 0;  // size limit of the whole file; each rank gets an equal share
    std::shared_ptr<SharedState> shared_state{};  // null: the job is not elastic
  };
  struct Job {
    std::string name{};              // see TraceHead
    std::int64_t engine_number = 1;  // 1 for the first engine of this process, 2 for the second, …
    // If the job has several hosts, all times in the file come from the clock of one host, and are
    // counted from `zero` on that clock. The time of our own clock plus clock_offset is the time of
    // that clock, with an error of at most clock_error.
    Duration clock_offset{};
    Duration clock_error{};
    std::optional<TimePoint> zero{};          // empty means now
    std::optional<TraceText::Group> group{};  // only in an elastic job
  };
  // All references must outlive this object.
  Timeline(const Options& options, const Clock& clock, const Log& log);
  ~Timeline();  // calls close()
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Starts a timeline in this file, after stopping the previous one. Any thread may call it. Blocks
  // until the beginning of the file is written. Errors: those of TraceFile::open(); kStop if the
  // thread cannot be started; kFixCall after close(). A later error is logged and ends the
  // timeline.
  Status start(const std::string& path, const Job& job, bool mark_cycles = false);
  // Stops the timeline. Afterwards all recorded events are in the file. Does nothing if no timeline
  // is on.
  void stop();
  // Stops the timeline; it cannot be started again.
  void close();
  // The child of a fork calls this, and no other function. Takes no lock.
  void abandon_after_fork();

  // These functions record an event. If no timeline is on, they only read a flag. Otherwise they
  // briefly take a lock and allocate nothing. The events of one call must be recorded in order.
  void record_submitted(Handle handle, const Submission& submission, TimePoint now) {
    if (is_on()) [[unlikely]]
      store_submitted(handle, submission, now);
  }
  void record_running(Handle handle, TimePoint now) {
    if (is_on()) [[unlikely]]
      store_change(handle, TraceEvent::Kind::kRunning, now);
  }
  void record_finished(Handle handle, bool succeeded, TimePoint now) {
    if (is_on()) [[unlikely]]
      store_change(handle, succeeded ? TraceEvent::Kind::kDone : TraceEvent::Kind::kFailed, now);
  }

 private:
  struct Pending {
    TraceBuffer events{0};
    bool writer_sleeps = false;  // the writing thread waits for the first event
    bool is_stopping = false;
  };
  struct Control {
    bool is_closed = false;
  };

  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  void store_submitted(Handle handle, const Submission& submission, TimePoint now);
  void store_change(Handle handle, TraceEvent::Kind kind, TimePoint now);
  template <class Add>
  void store(Add add);
  Status open(const std::string& path, const Job& job, bool mark_cycles);
  // Only the holder of control_ may call it.
  void stop_writer();

  // The body of the thread "farandole-trace".
  void run();
  bool collect(TraceBuffer& batch);
  Status write(const TraceBuffer& batch, bool is_last);
  void log_error(const Status& status) const;

  Options options_;
  const Clock& clock_;
  const Log& log_;
  Guarded<Control> control_;  // held while a timeline is started or stopped
  std::thread writer_;        // only the holder of control_ uses it
  // While the writing thread exists, only this thread uses the following members. Otherwise, only
  // the holder of control_ uses them.
  std::optional<TraceFile> file_;
  const std::shared_ptr<SharedState> shared_state_;
  TraceText& text_;  // shared_state_->text
  TraceBuffer collected_events_{0};

  Guarded<Pending> pending_;
  std::atomic<bool> is_on_ = false;
};

}  // namespace farandole
