#include "timeline/trace_events.h"

#include <cstring>
#include <type_traits>

// A stored event begins with a Head. For a submission, the shape and the name follow, padded to
// whole words.

namespace farandole {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

struct Head {
  Handle handle;
  std::int64_t time;
  std::uint32_t group;
  std::uint32_t name_bytes;
  std::uint32_t dimensions;
  TraceEvent::Kind kind;
  Operation operation;
  DType dtype;
};
constexpr std::size_t kHeadWords = sizeof(Head) / kWordBytes;
static_assert(sizeof(Head) % kWordBytes == 0 && std::is_trivially_copyable_v<Head>);

std::size_t words_for(std::size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

}  // namespace

TraceBuffer::TraceBuffer(std::size_t bytes) : words_(words_for(bytes)) {}

// Reserves room for an event. Returns an empty span if the buffer is full.
std::span<std::uint64_t> TraceBuffer::reserve(std::size_t words, TimePoint time) {
  if (!lost_since_ && words > words_.size() - used_) lost_since_ = time;
  if (lost_since_) return {};
  const auto room = std::span(words_).subspan(used_, words);
  used_ += words;
  return room;
}

void TraceBuffer::add_submitted(Handle handle, const Submission& submission, TimePoint time) {
  const std::size_t dimensions = submission.shape.size();
  const std::size_t name_bytes = submission.name.size();
  const auto room = reserve(kHeadWords + dimensions + words_for(name_bytes), time);
  if (room.empty()) {
    ++lost_calls_;
    return;
  }
  const Head head{.handle = handle,
                  .time = nanoseconds_of(time),
                  .group = submission.group,
                  .name_bytes = static_cast<std::uint32_t>(name_bytes),
                  .dimensions = static_cast<std::uint32_t>(dimensions),
                  .kind = TraceEvent::Kind::kSubmitted,
                  .operation = submission.operation,
                  .dtype = submission.dtype};
  std::memcpy(room.data(), &head, sizeof(head));
  const auto shape = room.subspan(kHeadWords, dimensions);
  if (dimensions > 0) std::memcpy(shape.data(), submission.shape.data(), shape.size_bytes());
  const auto name = room.subspan(kHeadWords + dimensions);
  if (name_bytes > 0) std::memcpy(name.data(), submission.name.data(), name_bytes);
}

void TraceBuffer::add_change(Handle handle, TraceEvent::Kind kind, TimePoint time) {
  const auto room = reserve(kHeadWords, time);
  if (room.empty()) return;
  Head head{};
  head.handle = handle;
  head.time = nanoseconds_of(time);
  head.kind = kind;
  std::memcpy(room.data(), &head, sizeof(head));
}

std::optional<TraceEvent> TraceBuffer::next(std::size_t& position) const {
  if (position == used_) return std::nullopt;
  const auto stored_event = std::span(words_).subspan(position, used_ - position);
  Head head{};
  std::memcpy(&head, stored_event.data(), sizeof(head));
  TraceEvent event;
  event.kind = head.kind;
  event.handle = head.handle;
  event.time = TimePoint(Duration(head.time));
  event.operation = head.operation;
  event.dtype = head.dtype;
  event.group = head.group;
  const auto shape = stored_event.subspan(kHeadWords, head.dimensions);
  // Reading these words as int64_t is allowed, because the bytes were copied from int64_t values.
  event.shape = {reinterpret_cast<const std::int64_t*>(shape.data()), shape.size()};
  const auto name = stored_event.subspan(kHeadWords + head.dimensions, words_for(head.name_bytes));
  event.name = {reinterpret_cast<const char*>(name.data()), head.name_bytes};
  position += kHeadWords + shape.size() + name.size();
  return event;
}

void TraceBuffer::clear() {
  used_ = 0;
  lost_since_.reset();
  lost_calls_ = 0;
}

}  // namespace farandole
