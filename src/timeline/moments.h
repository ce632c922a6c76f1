// Moments: what is noted of the calls of one rank while a timeline is on, and the buffer in which
// they wait for the thread that writes them. Of fixed size: to note one allocates nothing.
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

struct Moment {
  enum class Kind : std::uint8_t { kSubmitted, kRunning, kDone, kFailed };
  Kind kind = Kind::kSubmitted;
  Handle handle = 0;
  TimePoint time{};
  // Of kSubmitted only; name and shape lie in the buffer.
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  GroupId group = kWorld;
  std::string_view name{};
  std::span<const std::int64_t> shape{};
};

// A plain container, filled from one end and then read as a whole.
class MomentBuffer {
 public:
  explicit MomentBuffer(std::size_t bytes);

  void submitted(Handle handle, const Submission& submission, TimePoint time);
  // Of a call that was noted as submitted.
  void changed(Handle handle, Moment::Kind kind, TimePoint time);

  bool empty() const { return used_ == 0 && !lost_since_; }
  bool is_half_full() const { return used_ * 2 >= words_.size() || lost_since_; }
  // From the first moment without room on none is taken any more, so that what is here belongs
  // together.
  std::optional<TimePoint> lost_since() const { return lost_since_; }
  std::size_t lost_calls() const { return lost_calls_; }

  // Reads them in order: `at` begins as 0 and is moved on; nothing at the end.
  std::optional<Moment> next(std::size_t& at) const;
  void clear();

 private:
  std::span<std::uint64_t> room_for(std::size_t words, TimePoint time);

  std::vector<std::uint64_t> words_;
  std::size_t used_ = 0;
  std::optional<TimePoint> lost_since_;
  std::size_t lost_calls_ = 0;
};

}  // namespace farandole
