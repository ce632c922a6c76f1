// Trace events: what is noted about the calls of one rank while a timeline is on, and the buffer in
// which they wait for the writing thread. The buffer has a fixed size, so noting an event allocates
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
  // Only for kSubmitted. Name and shape are in the buffer.
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  GroupId group = kWorld;
  std::string_view name{};
  std::span<const std::int64_t> shape{};
};

// A plain container without locks, which is filled and then read as a whole.
class TraceBuffer {
 public:
  explicit TraceBuffer(std::size_t bytes);

  void submitted(Handle handle, const Submission& submission, TimePoint time);
  // The call must have been noted as submitted.
  void changed(Handle handle, TraceEvent::Kind kind, TimePoint time);

  bool empty() const { return used_ == 0 && !lost_since_; }
  bool is_half_full() const { return used_ * 2 >= words_.size() || lost_since_; }
  // When the first event was left out for want of room. No later event is taken, so the buffer has
  // no gaps.
  std::optional<TimePoint> lost_since() const { return lost_since_; }
  std::size_t lost_calls() const { return lost_calls_; }

  // Reads the events in order. `at` must begin as 0 and is advanced. Empty at the end.
  std::optional<TraceEvent> next(std::size_t& at) const;
  void clear();

 private:
  std::span<std::uint64_t> room_for(std::size_t words, TimePoint time);

  std::vector<std::uint64_t> words_;
  std::size_t used_ = 0;
  std::optional<TimePoint> lost_since_;
  std::size_t lost_calls_ = 0;
};

}  // namespace farandole
