#include "collective/staged_broadcast.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

// The phases: at the root w = "window w is staged" (0 is the entry itself); at a reader w + 1 =
// "window w is copied". Window w lives in part w mod 4 of the root's staging memory, so the root
// may stage w when all readers are at ≥ w − 3, that is, have copied w − 4. The last windows need no
// such phase: the slot is used again in the step after the next, which nobody enters before all
// have completed this one.

namespace farandole {
namespace {

constexpr std::int64_t kWindow = static_cast<std::int64_t>(kWindowBytes);
constexpr std::int64_t kParts = static_cast<std::int64_t>(kStagingBytesPerSlot) / kWindow;

constexpr std::int64_t part_offset(std::int64_t window) { return window % kParts * kWindow; }

}  // namespace

StagedBroadcast::StagedBroadcast(const Group& group, const StepIdentity& identity,
                                 const Options& options)
    : entrance_(group, identity),
      options_(options),
      windows_((options.bytes + kWindow - 1) / kWindow) {}

Progress StagedBroadcast::advance() {
  switch (state_) {
    case State::kEnter:
      return enter();
    case State::kMeet:
      return meet();
    case State::kMove:
      return is_root() ? send_window() : receive_window();
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

std::size_t StagedBroadcast::bytes_of(std::int64_t window) const {
  return static_cast<std::size_t>(std::min(kWindow, options_.bytes - window * kWindow));
}

void StagedBroadcast::stage(std::int64_t window) {
  std::memcpy(entrance_.own_staging() + part_offset(window), options_.input + window * kWindow,
              bytes_of(window));
}

Progress StagedBroadcast::enter() {
  if (is_root() && windows_ > 0 && entrance_.group().members() > 1) stage(0);
  entrance_.enter(options_.bytes);
  state_ = State::kMeet;
  return Progress::kMoved;
}

Progress StagedBroadcast::meet() {
  const Progress met = entrance_.meet();
  if (met != Progress::kDone) return met;
  if (!entrance_.extents_equal()) return Progress::kMismatch;
  if (windows_ == 0) return finish();
  state_ = State::kMove;
  return Progress::kMoved;
}

bool StagedBroadcast::part_is_free(std::int64_t window) const {
  const std::int64_t copied = window - kParts + 1;
  for (int member = 0; copied > 0 && member < entrance_.group().members(); ++member) {
    if (member == options_.root) continue;
    if (entrance_.board().phase(member) < static_cast<std::uint32_t>(copied)) return false;
  }
  return true;
}

Progress StagedBroadcast::send_window() {
  if (!part_is_free(window_)) return Progress::kPending;
  if (window_ > 0 && entrance_.group().members() > 1) {
    stage(window_);
    entrance_.board().publish_phase(static_cast<std::uint32_t>(window_));
  }
  if (options_.output != options_.input)
    std::memcpy(options_.output + window_ * kWindow, options_.input + window_ * kWindow,
                bytes_of(window_));
  return next_window();
}

Progress StagedBroadcast::receive_window() {
  if (entrance_.board().phase(options_.root) < static_cast<std::uint32_t>(window_))
    return Progress::kPending;
  std::memcpy(options_.output + window_ * kWindow,
              entrance_.staging(options_.root) + part_offset(window_), bytes_of(window_));
  if (window_ + kParts < windows_)
    entrance_.board().publish_phase(static_cast<std::uint32_t>(window_ + 1));
  return next_window();
}

Progress StagedBroadcast::next_window() {
  ++window_;
  return window_ == windows_ ? finish() : Progress::kMoved;
}

Progress StagedBroadcast::finish() {
  state_ = State::kOver;
  return Progress::kDone;
}

}  // namespace farandole
