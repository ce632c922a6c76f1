// Trace events: the events of one rank's calls that a timeline records, and the buffer in which
// they wait for the writing thread. The buffer has a fixed size, so recording an event allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "farandole/engine.h"

namespace farandole {

struct TraceEvent {
  enum class Kind : std::uint8_t { kSubmitted, kRunning, kDone, kFailed };
  Kind kind = Kind::kSubmitted;
  Handle handle = 0;
  TimePoint time{};
  // The following fields are set only for kSubmitted. `name` and `shape` point into the buffer.
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  GroupId group = kWorld;
  std::string_view name{};
  std::span<const std::int64_t> shape{};
};

// A container without locks. It is filled, read as a whole, and cleared.
class TraceBuffer {
 public:
  explicit TraceBuffer(std::size_t bytes);

  void add_submitted(Handle handle, const Submission& submission, TimePoint time);
  // The call must have been recorded as submitted.
  void add_change(Handle handle, TraceEvent::Kind kind, TimePoint time);

  bool empty() const { return used_ == 0 && !lost_since_; }
  bool is_half_full() const { return used_ * 2 >= words_.size() || lost_since_; }
  // The time of the first event that did not fit. Empty if all events did fit. All later events are
  // dropped too, so the buffer has no gaps.
  std::optional<TimePoint> lost_since() const { return lost_since_; }
  std::size_t lost_calls() const { return lost_calls_; }

  // Returns the next event, or nothing at the end. `position` is 0 for the first call, and each
  // call advances it.
  std::optional<TraceEvent> next(std::size_t& position) const;
  void clear();

 private:
  std::span<std::uint64_t> reserve(std::size_t words, TimePoint time);

  std::vector<std::uint64_t> words_;
  std::size_t used_ = 0;
  std::optional<TimePoint> lost_since_;
  std::size_t lost_calls_ = 0;
};

}  // namespace farandole
