#include "timeline/timeline.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/allocation.h"
#include "base/format.h"
#include "base/thread_setup.h"
#include "base/try.h"

namespace farandole {
namespace {

// Each of the two buffers has room for about 20,000 calls. One collects events while the other is
// written to the file.
constexpr std::size_t kBufferBytes = 4 << 20;
// How long events are collected before they are written. If a rank is killed, the events that it
// has collected in this time are lost. A shorter time would wake the writing thread of a busy rank
// more often.
constexpr std::chrono::milliseconds kCollectTime(100);

// Returns the absolute path, because the program may change its working directory.
std::string absolute_path(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

}  // namespace

std::int64_t microseconds_since_1970(Duration age) {
  return (std::chrono::system_clock::now().time_since_epoch() - age) / std::chrono::microseconds(1);
}

Timeline::Timeline(const Options& options, const Clock& clock, const Log& log)
    : options_(options),
      clock_(clock),
      log_(log),
      shared_state_(options.shared_state ? options.shared_state
                                         : std::make_shared<SharedState>(TraceText(options.rank))),
      text_(shared_state_->text) {}

Timeline::~Timeline() { close(); }

Status Timeline::start(const std::string& path, const Job& job, bool mark_cycles) {
  auto control = control_.lock();
  if (control->is_closed)
    return Status::fix_call("the engine is shut down; call init() before a timeline is started");
  stop_writer();
  const auto error_prefix = [&] {
    return format_text("the timeline cannot be written to `{}`", path);
  };
  return catch_bad_alloc(error_prefix, [&] { return open(path, job, mark_cycles); });
}

Status Timeline::open(const std::string& path, const Job& job, bool mark_cycles) {
  TraceBuffer events(kBufferBytes);
  collected_events_ = TraceBuffer(kBufferBytes);
  const TimePoint now = clock_.now() + job.clock_offset;
  const TimePoint zero = job.zero.value_or(now);
  auto file = TraceFile::open(path, {job.name, zero, microseconds_since_1970(now - zero)});
  if (!file.ok()) return file.status();
  file_.emplace(*std::move(file));
  const std::size_t used_bytes = std::min(file_->bytes_at_open(), options_.bytes_max);
  text_.begin(file_->head().zero - job.clock_offset,
              (options_.bytes_max - used_bytes) / static_cast<std::size_t>(options_.rank.size),
              job.engine_number, mark_cycles);
  if (job.clock_error > Duration()) text_.add_clock_error(job.clock_error);
  if (job.group) text_.add_group(*job.group, clock_.now());
  {
    auto pending = pending_.lock();
    pending->events = std::move(events);
    pending->is_stopping = false;
  }
  try {
    writer_ = std::thread(&Timeline::run, this);
  } catch (const std::system_error& error) {
    file_->close();
    return Status::stop(format_text(
        "cannot start the thread of the timeline ({}); raise `ulimit -u` or the pids limit of the "
        "container",
        error.what()));
  }
  shared_state_->path = absolute_path(path);
  shared_state_->mark_cycles = mark_cycles;
  is_on_ = true;
  return {};
}

void Timeline::stop() {
  const auto control = control_.lock();
  shared_state_->path.clear();
  stop_writer();
}

void Timeline::close() {
  auto control = control_.lock();
  control->is_closed = true;
  stop_writer();
}

void Timeline::abandon_after_fork() {
  is_on_ = false;
  if (file_) file_->abandon_after_fork();
}

void Timeline::stop_writer() {
  if (!writer_.joinable()) return;
  is_on_ = false;
  pending_.lock()->is_stopping = true;
  pending_.notify_all();
  writer_.join();
  file_.reset();
  collected_events_ = TraceBuffer(0);
  pending_.lock()->events = TraceBuffer(0);
}

void Timeline::store_submitted(Handle handle, const Submission& submission, TimePoint now) {
  store([&](TraceBuffer& events) { events.add_submitted(handle, submission, now); });
}

void Timeline::store_change(Handle handle, TraceEvent::Kind kind, TimePoint now) {
  store([&](TraceBuffer& events) { events.add_change(handle, kind, now); });
}

// Wakes the writing thread at the first event after a pause, and when the buffer becomes half full.
template <class Add>
void Timeline::store(Add add) {
  bool must_wake_writer = false;
  {
    auto pending = pending_.lock();
    const bool was_half_full = pending->events.is_half_full();
    add(pending->events);
    must_wake_writer = std::exchange(pending->writer_sleeps, false) ||
                       (!was_half_full && pending->events.is_half_full());
  }
  if (must_wake_writer) pending_.notify_all();
}

void Timeline::run() {
  set_up_own_thread("farandole-trace");
  const auto error_prefix = [] { return std::string("the timeline ends here"); };
  bool is_open = true;
  for (bool is_last = false; !is_last;) {
    is_last = collect(collected_events_);
    if (!is_open) continue;
    Status status =
        catch_bad_alloc(error_prefix, [&] { return write(collected_events_, is_last); });
    if (status.ok() && !is_last) continue;
    is_open = is_on_ = false;
    file_->close();
    log_error(status);
  }
}

void Timeline::log_error(const Status& status) const {
  if (status.ok()) return;
  try {
    log_(Level::kWarning, status.message() + "; the job goes on without it");
  } catch (const std::bad_alloc&) {
    return;  // if there is no memory for the warning, it is not logged
  }
}

// Waits for events and moves them to `batch`. Returns true if these are the last events.
bool Timeline::collect(TraceBuffer& batch) {
  batch.clear();
  auto pending = pending_.lock();
  pending->writer_sleeps = true;
  pending.wait([](Pending& p) { return p.is_stopping || !p.events.empty(); });
  pending->writer_sleeps = false;
  pending.wait_until(clock_.now() + kCollectTime,
                     [](Pending& p) { return p.is_stopping || p.events.is_half_full(); });
  std::swap(pending->events, batch);
  return pending->is_stopping;
}

Status Timeline::write(const TraceBuffer& batch, bool is_last) {
  std::size_t position = 0;
  while (const auto event = batch.next(position)) text_.add(*event);
  if (const auto since = batch.lost_since()) text_.mark_lost(*since, batch.lost_calls());
  if (is_last) text_.end(clock_.now());
  return file_->append(text_.take());
}

}  // namespace farandole
