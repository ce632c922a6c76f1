#include "collective/staged_allgather.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

// Phase w of a member = "my window w is staged" (0 is the entry itself). A member goes, for w = 0,
// 1, …:  stage w + 1; publish w + 1; wait all ≥ w; copy window w of all others.
// All members do all rounds, also those that have nothing left to show.
// Window w lives in part w mod 4 of the staging memory. stage(w + 1) overwrites window w − 3. We do
// it after our round w − 1, in which all were at ≥ w − 1, and they publish w − 1 after their round
// w − 3: everybody has copied window w − 3. So no further phase is needed.

namespace farandole {
namespace {

constexpr std::int64_t kWindow = static_cast<std::int64_t>(kWindowBytes);
constexpr std::int64_t kParts = static_cast<std::int64_t>(kStagingBytesPerSlot) / kWindow;
static_assert(kParts >= 4, "the argument above needs four parts");

constexpr std::int64_t part_offset(std::int64_t round) { return round % kParts * kWindow; }

// How much of `bytes` a round carries.
std::int64_t part_of(std::int64_t bytes, std::int64_t round) {
  return std::clamp(bytes - round * kWindow, std::int64_t{0}, kWindow);
}

}  // namespace

StagedAllgather::StagedAllgather(const Group& group, const StepIdentity& identity, Options options)
    : entrance_(group, identity), options_(std::move(options)) {}

Progress StagedAllgather::advance() {
  switch (state_) {
    case State::kEnter:
      return enter();
    case State::kMeet:
      return meet();
    case State::kStage:
      return stage_next();
    case State::kCollect:
      return collect();
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

void StagedAllgather::stage(std::int64_t round) {
  const std::int64_t bytes = part_of(options_.rows * options_.row_bytes, round);
  if (bytes > 0 && entrance_.group().members() > 1)
    std::memcpy(entrance_.own_staging() + part_offset(round), options_.input + round * kWindow,
                static_cast<std::size_t>(bytes));
}

Progress StagedAllgather::enter() {
  if (!entrance_.may_enter()) return Progress::kPending;
  stage(0);
  entrance_.enter(options_.rows);
  state_ = State::kMeet;
  return Progress::kMoved;
}

Progress StagedAllgather::meet() {
  const Progress met = entrance_.meet();
  if (met != Progress::kDone) return met;
  std::int64_t total = 0;
  for (int member = 0; member < entrance_.group().members(); ++member) {
    const std::int64_t rows = entrance_.extent(member);
    std::int64_t bytes = 0;
    std::int64_t end = 0;
    if (__builtin_mul_overflow(rows, options_.row_bytes, &bytes) ||
        __builtin_add_overflow(total, bytes, &end))
      return Progress::kMismatch;
    rows_.push_back(rows);
    offsets_.push_back(std::exchange(total, end));
    rounds_ = std::max(rounds_, bytes / kWindow + (bytes % kWindow != 0 ? 1 : 0));
  }
  output_ = options_.allocate(rows_);
  if (rounds_ == 0) return finish();
  state_ = State::kStage;
  return Progress::kMoved;
}

Progress StagedAllgather::stage_next() {
  if (round_ + 1 < rounds_) {
    stage(round_ + 1);
    entrance_.board().publish_phase(static_cast<std::uint32_t>(round_ + 1));
  }
  next_member_ = 0;
  state_ = State::kCollect;
  return Progress::kMoved;
}

// Copies from as many members as make up about one window.
Progress StagedAllgather::collect() {
  if (!entrance_.board().all_reached(static_cast<std::uint32_t>(round_))) return Progress::kPending;
  const int members = entrance_.group().members();
  for (std::int64_t copied = 0; next_member_ < members && copied < kWindow; ++next_member_)
    copied += collect_from(next_member_);
  if (next_member_ < members) return Progress::kMoved;
  ++round_;
  if (round_ == rounds_) return finish();
  state_ = State::kStage;
  return Progress::kMoved;
}

std::int64_t StagedAllgather::collect_from(int member) {
  const std::int64_t bytes = part_of(entrance_.extent(member) * options_.row_bytes, round_);
  if (bytes == 0 || output_ == nullptr) return 0;
  const std::byte* from = member == entrance_.group().member
                              ? options_.input + round_ * kWindow
                              : entrance_.staging(member) + part_offset(round_);
  std::memcpy(output_ + offsets_[static_cast<std::size_t>(member)] + round_ * kWindow, from,
              static_cast<std::size_t>(bytes));
  return bytes;
}

Progress StagedAllgather::finish() {
  entrance_.board().finish();
  state_ = State::kOver;
  return Progress::kDone;
}

}  // namespace farandole
