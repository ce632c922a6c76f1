#include "timeline/flight_record.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <span>

#include "base/check.h"
#include "timeline/timeline.h"

// All fields are atomics, because another process may read them at any time. A line works like a
// seqlock: the writer clears the line's handle first and sets it last, and the reader loads the
// handle before and after the other fields. The fields are stored with release and loaded with
// acquire, so a reader that sees a new field also sees the cleared handle.

namespace farandole {
namespace {

constexpr std::size_t kGroupsKept = 64;
constexpr std::size_t kReasonBytes = 1024;
constexpr std::size_t kTracebackBytes = 16 * 1024;

template <std::size_t kBytes>
struct AtomicText {
  static constexpr std::size_t kWords = kBytes / sizeof(std::uint64_t);
  std::atomic<std::uint32_t> bytes;
  std::array<std::atomic<std::uint64_t>, kWords> words;

  void write(std::string_view text) {
    const std::size_t size = std::min(text.size(), kBytes);
    for (std::size_t word = 0; word * sizeof(std::uint64_t) < size; ++word) {
      std::uint64_t value = 0;
      const std::size_t begin = word * sizeof(value);
      std::memcpy(&value, text.data() + begin, std::min(sizeof(value), size - begin));
      words[word].store(value, std::memory_order_release);
    }
    bytes.store(static_cast<std::uint32_t>(size), std::memory_order_release);
  }

  std::string read() const {
    const std::size_t size = std::min<std::size_t>(bytes.load(std::memory_order_acquire), kBytes);
    std::string text(size, '\0');
    for (std::size_t word = 0; word * sizeof(std::uint64_t) < size; ++word) {
      const std::uint64_t value = words[word].load(std::memory_order_acquire);
      const std::size_t begin = word * sizeof(value);
      std::memcpy(text.data() + begin, &value, std::min(sizeof(value), size - begin));
    }
    return text;
  }
};

struct alignas(64) Line {
  std::atomic<std::uint64_t> handle;  // 0 while the line is being written
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> group;
  std::atomic<std::uint32_t> kind;  // bits 0 to 7: the operation; the bits above: the dtype
  std::atomic<std::int32_t> peer;
  std::atomic<std::int64_t> submitted;
  std::atomic<std::int64_t> changed;
  std::atomic<std::int64_t> elements;
  std::atomic<std::uint64_t> name_hash;
  AtomicText<kFlightNameBytes> name;
};

// Only one thread at a time writes the counters, so a load and a store are enough to add to one.
struct alignas(64) Counters {
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::int64_t> blocked;
  std::atomic<std::uint64_t> wait_handle;
  std::atomic<std::int64_t> wait_since;
  std::atomic<std::int64_t> wait_until;  // 0 while the wait continues

  template <typename Number>
  static void add(std::atomic<Number>& counter, Number amount) {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
};

struct FlightRecord {
  std::atomic<std::uint32_t> member_state;
  std::atomic<std::uint32_t> blamed_rank_plus_one;  // 0 for none
  std::atomic<std::int64_t> since;
  // Each entry is the id of a group + 1, or 0 if the entry is free.
  std::array<std::atomic<std::uint32_t>, kGroupsKept> groups;
  std::atomic<std::uint32_t> cause;
  AtomicText<kReasonBytes> reason;
  AtomicText<kTracebackBytes> traceback;
  Counters counters;
  std::array<Line, kFlightCalls> lines;
};

FlightRecord& record_in(std::byte* memory) { return *reinterpret_cast<FlightRecord*>(memory); }
const FlightRecord& record_in(const std::byte* memory) {
  return *reinterpret_cast<const FlightRecord*>(memory);
}

// Returns the number of nanoseconds, or 0 if the number is negative or so large that differences of
// times could overflow. Another process wrote the number, so it may have any value.
std::int64_t valid_or_zero(std::int64_t nanoseconds) {
  return nanoseconds < 0 || nanoseconds > std::numeric_limits<std::int64_t>::max() / 4
             ? 0
             : nanoseconds;
}
TimePoint time_of(std::int64_t nanoseconds) {
  return TimePoint(Duration(valid_or_zero(nanoseconds)));
}

Line& line_of(std::byte* memory, Handle handle) {
  return record_in(memory).lines[handle % kFlightCalls];
}

std::optional<RecordedCall> read_line(const Line& line) {
  const std::uint64_t handle = line.handle.load(std::memory_order_acquire);
  if (handle == 0) return std::nullopt;
  RecordedCall call;
  call.handle = handle;
  call.state = static_cast<CallState>(line.state.load(std::memory_order_acquire));
  call.group = line.group.load(std::memory_order_acquire);
  const std::uint32_t kind = line.kind.load(std::memory_order_acquire);
  call.peer = line.peer.load(std::memory_order_acquire);
  call.submitted = time_of(line.submitted.load(std::memory_order_acquire));
  call.changed = time_of(line.changed.load(std::memory_order_acquire));
  call.elements = line.elements.load(std::memory_order_acquire);
  call.name_hash = line.name_hash.load(std::memory_order_acquire);
  call.name = line.name.read();
  if (line.handle.load(std::memory_order_relaxed) != handle) return std::nullopt;
  // Another process wrote `kind`, so it may have any value.
  const std::uint32_t operation = kind & 0xFFU;
  const std::uint32_t dtype = kind >> 8U;
  if (operation >= kOperationRows.size() || dtype >= kDTypes.size()) return std::nullopt;
  if (call.state > CallState::kFailed) return std::nullopt;
  call.operation = static_cast<Operation>(operation);
  call.dtype = static_cast<DType>(dtype);
  return call;
}

void set_state(std::byte* memory, Handle handle, CallState state, TimePoint now) {
  Line& line = line_of(memory, handle);
  if (line.handle.load(std::memory_order_relaxed) != handle) return;  // a later call uses the line
  line.changed.store(nanoseconds_of(now), std::memory_order_relaxed);
  line.state.store(static_cast<std::uint32_t>(state), std::memory_order_release);
}

void set_member_state(std::byte* memory, MemberState member_state, TimePoint now) {
  record_in(memory).since.store(nanoseconds_of(now), std::memory_order_relaxed);
  record_in(memory).member_state.store(static_cast<std::uint32_t>(member_state),
                                       std::memory_order_release);
}

}  // namespace

std::size_t FlightRecorder::bytes_needed() { return sizeof(FlightRecord); }

void FlightRecorder::begin(TimePoint now) {
  FlightRecord& record = record_in(memory_);
  for (Line& line : record.lines) line.handle.store(0, std::memory_order_relaxed);
  for (auto& group : record.groups) group.store(0, std::memory_order_relaxed);
  record.blamed_rank_plus_one.store(0, std::memory_order_relaxed);
  record.cause.store(0, std::memory_order_relaxed);
  record.reason.write("");
  record.traceback.write("");
  Counters& counters = record.counters;
  for (auto* counter : {&counters.calls, &counters.bytes, &counters.wait_handle})
    counter->store(0, std::memory_order_relaxed);
  for (auto* time : {&counters.blocked, &counters.wait_since, &counters.wait_until})
    time->store(0, std::memory_order_relaxed);
  set_member_state(memory_, MemberState::kForming, now);
}

void FlightRecorder::record_membership(TimePoint now) {
  set_member_state(memory_, MemberState::kMember, now);
}

void FlightRecorder::enter_group(GroupId group) {
  for (auto& entry : record_in(memory_).groups) {
    if (entry.load(std::memory_order_relaxed) != 0) continue;
    entry.store(group + 1, std::memory_order_relaxed);
    return;
  }
}

void FlightRecorder::leave_group(GroupId group) {
  for (auto& entry : record_in(memory_).groups)
    if (entry.load(std::memory_order_relaxed) == group + 1)
      entry.store(0, std::memory_order_relaxed);
}

void FlightRecorder::record_submitted(Handle handle, const Submission& submission,
                                      std::uint64_t name_hash, TimePoint now) {
  CHECK(handle != 0, "handles start at 1");
  Line& line = line_of(memory_, handle);
  line.handle.store(0, std::memory_order_relaxed);
  std::int64_t elements = 1;
  for (const std::int64_t dimension : submission.shape) elements *= dimension;
  line.state.store(static_cast<std::uint32_t>(CallState::kWaiting), std::memory_order_release);
  line.group.store(submission.group, std::memory_order_release);
  line.kind.store(static_cast<std::uint32_t>(submission.operation) |
                      static_cast<std::uint32_t>(submission.dtype) << 8U,
                  std::memory_order_release);
  line.peer.store(submission.peer, std::memory_order_release);
  line.submitted.store(nanoseconds_of(now), std::memory_order_release);
  line.changed.store(nanoseconds_of(now), std::memory_order_release);
  line.elements.store(elements, std::memory_order_release);
  line.name_hash.store(name_hash, std::memory_order_release);
  line.name.write(submission.name);
  line.handle.store(handle, std::memory_order_release);
  if (timeline_ != nullptr) timeline_->record_submitted(handle, submission, now);
  if (row_of(submission.operation).output_rule == OutputRule::kNone) return;
  Counters::add(record_in(memory_).counters.bytes,
                static_cast<std::uint64_t>(elements) * row_of(submission.dtype).bytes);
}

void FlightRecorder::record_running(Handle handle, TimePoint now) {
  set_state(memory_, handle, CallState::kRunning, now);
  if (timeline_ != nullptr) timeline_->record_running(handle, now);
}

void FlightRecorder::record_finished(Handle handle, bool succeeded, TimePoint now) {
  set_state(memory_, handle, succeeded ? CallState::kDone : CallState::kFailed, now);
  if (timeline_ != nullptr) timeline_->record_finished(handle, succeeded, now);
  if (succeeded) Counters::add<std::uint64_t>(record_in(memory_).counters.calls, 1);
}

void FlightRecorder::record_blocked(Handle handle, TimePoint now) {
  Counters& counters = record_in(memory_).counters;
  counters.wait_handle.store(handle, std::memory_order_relaxed);
  counters.wait_since.store(nanoseconds_of(now), std::memory_order_relaxed);
  counters.wait_until.store(0, std::memory_order_release);
}

void FlightRecorder::record_unblocked(TimePoint now) {
  Counters& counters = record_in(memory_).counters;
  const std::int64_t waited =
      nanoseconds_of(now) - counters.wait_since.load(std::memory_order_relaxed);
  // The end may have an earlier time than the beginning, because two threads read the clock.
  if (waited > 0) Counters::add(counters.blocked, waited);
  counters.wait_until.store(std::max<std::int64_t>(nanoseconds_of(now), 1),
                            std::memory_order_release);
}

void FlightRecorder::record_blamed_rank(int rank) {
  std::uint32_t expected = 0;
  record_in(memory_).blamed_rank_plus_one.compare_exchange_strong(
      expected, static_cast<std::uint32_t>(rank) + 1);
}

void FlightRecorder::record_left(std::string_view reason, LeaveCause cause,
                                 std::string_view traceback, TimePoint now) {
  // The last lines of a traceback matter most, so cut off its beginning.
  if (traceback.size() > kTracebackBytes)
    traceback.remove_prefix(traceback.size() - kTracebackBytes);
  record_in(memory_).cause.store(static_cast<std::uint32_t>(cause), std::memory_order_relaxed);
  record_in(memory_).reason.write(reason);
  record_in(memory_).traceback.write(traceback);
  set_member_state(memory_, MemberState::kLeft, now);
}

namespace {

FlightWait read_wait(const Counters& counters) {
  FlightWait wait;
  const std::int64_t until = counters.wait_until.load(std::memory_order_acquire);
  if (until != 0) wait.until = time_of(until);
  wait.since = time_of(counters.wait_since.load(std::memory_order_relaxed));
  wait.handle = counters.wait_handle.load(std::memory_order_relaxed);
  return wait;
}

FlightCounts read_counts(const Counters& counters) {
  return {.calls = counters.calls.load(std::memory_order_relaxed),
          .bytes = counters.bytes.load(std::memory_order_relaxed),
          .blocked = Duration(valid_or_zero(counters.blocked.load(std::memory_order_relaxed)))};
}

}  // namespace

FlightReport read_flight_record(const std::byte* memory) {
  const FlightRecord& record = record_in(memory);
  FlightReport report;
  const auto member_state = record.member_state.load(std::memory_order_acquire);
  if (member_state <= static_cast<std::uint32_t>(MemberState::kLeft))
    report.member_state = static_cast<MemberState>(member_state);
  report.since = time_of(record.since.load(std::memory_order_relaxed));
  if (const auto blamed_rank_plus_one = record.blamed_rank_plus_one.load(std::memory_order_relaxed);
      blamed_rank_plus_one != 0)
    report.blamed_rank = static_cast<int>(blamed_rank_plus_one - 1);
  const auto cause = record.cause.load(std::memory_order_relaxed);
  if (cause <= static_cast<std::uint32_t>(LeaveCause::kGroupLost))
    report.cause = static_cast<LeaveCause>(cause);
  report.reason = record.reason.read();
  report.traceback = record.traceback.read();
  for (const auto& group : record.groups)
    if (const auto entry = group.load(std::memory_order_relaxed); entry != 0)
      report.groups.push_back(entry - 1);
  for (const Line& line : record.lines)
    if (auto call = read_line(line)) report.calls.push_back(*std::move(call));
  std::ranges::sort(report.calls, {}, &RecordedCall::handle);
  report.counts = read_counts(record.counters);
  report.wait = read_wait(record.counters);
  return report;
}

}  // namespace farandole
