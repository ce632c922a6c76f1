#include "collective/staged_alltoall.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

// Phase w of a member = "my pieces of round w are staged" (0 is the entry itself, with the splits).
// A member goes, for w = 0, 1, …:  stage w + 1; publish w + 1; wait all ≥ w; copy its piece of
// round w from all others. All members do all rounds, also those that have nothing left to send.
// Round w lives in part w mod 4 of the staging memory. stage(w + 1) overwrites round w − 3. We do
// it after our round w − 1, in which all were at ≥ w − 1, and they publish w − 1 after their round
// w − 3: everybody has copied what we showed in round w − 3. So no further phase is needed.
// The splits lie before the parts; nothing overwrites them. The next step with this slot is entered
// only when all are done with this one.

namespace farandole {
namespace {

constexpr std::int64_t kStaging = static_cast<std::int64_t>(kStagingBytesPerSlot);
constexpr std::int64_t kParts = 4;
constexpr std::int64_t kSplitBytes = sizeof(std::int64_t);

// Pieces are whole cache lines, so that no line is for two members.
constexpr std::int64_t kPieceAlignment = 64;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr std::int64_t round_down(std::int64_t value, std::int64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace

StagedAlltoall::StagedAlltoall(const Group& group, const StepIdentity& identity, Options options)
    : entrance_(group, identity),
      options_(std::move(options)),
      splits_bytes_(round_up(group.members() * kSplitBytes, kPieceAlignment)),
      part_bytes_(round_down((kStaging - splits_bytes_) / kParts, kPieceAlignment)),
      piece_bytes_(round_down(part_bytes_ / group.members(), kPieceAlignment)) {
  CHECK(piece_bytes_ > 0, "every member has a piece of a window");
  CHECK(options_.splits.size() == group.ranks.size(), "there is one split for each member");
  std::int64_t begin = 0;
  for (const std::int64_t rows : options_.splits) {
    CHECK(rows >= 0 && rows <= options_.rows - begin, "the splits do not exceed the rows");
    send_offsets_.push_back(begin * options_.row_bytes);
    begin += rows;
  }
}

Progress StagedAlltoall::advance() {
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

std::int64_t StagedAlltoall::split(int from, int to) const {
  const auto members = static_cast<std::size_t>(entrance_.group().members());
  return splits_[static_cast<std::size_t>(from) * members + static_cast<std::size_t>(to)];
}

std::int64_t StagedAlltoall::piece_of(std::int64_t rows, std::int64_t round) const {
  return std::clamp(rows * options_.row_bytes - round * piece_bytes_, std::int64_t{0},
                    piece_bytes_);
}

std::int64_t StagedAlltoall::piece_offset(std::int64_t round, int member) const {
  return splits_bytes_ + round % kParts * part_bytes_ + member * piece_bytes_;
}

void StagedAlltoall::stage_splits() {
  std::memcpy(entrance_.own_staging(), options_.splits.data(),
              options_.splits.size() * static_cast<std::size_t>(kSplitBytes));
}

void StagedAlltoall::stage(std::int64_t round) {
  const Group& group = entrance_.group();
  for (int member = 0; member < group.members(); ++member) {
    const auto index = static_cast<std::size_t>(member);
    const std::int64_t bytes = piece_of(options_.splits[index], round);
    if (member == group.member || bytes == 0) continue;
    std::memcpy(entrance_.own_staging() + piece_offset(round, member),
                options_.input + send_offsets_[index] + round * piece_bytes_,
                static_cast<std::size_t>(bytes));
  }
}

Progress StagedAlltoall::enter() {
  if (!entrance_.may_enter()) return Progress::kPending;
  stage_splits();
  stage(0);
  entrance_.enter(options_.rows);
  state_ = State::kMeet;
  return Progress::kMoved;
}

// Copied before they are checked: what is checked cannot change any more.
void StagedAlltoall::read_splits() {
  const auto members = static_cast<std::size_t>(entrance_.group().members());
  splits_.resize(members * members);
  for (std::size_t member = 0; member < members; ++member)
    std::memcpy(&splits_[member * members], entrance_.staging(static_cast<int>(member)),
                members * static_cast<std::size_t>(kSplitBytes));
}

// The same answer on all members: nobody sends more than it has, and no number overflows.
bool StagedAlltoall::splits_fit() const {
  const int members = entrance_.group().members();
  for (int member = 0; member < members; ++member) {
    std::int64_t left = entrance_.extent(member);
    std::int64_t received = 0;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(left, options_.row_bytes, &bytes)) return false;
    for (int other = 0; other < members; ++other) {
      const std::int64_t sent = split(member, other);
      if (sent < 0 || sent > left) return false;
      left -= sent;
      if (__builtin_add_overflow(received, split(other, member), &received)) return false;
    }
    if (__builtin_mul_overflow(received, options_.row_bytes, &bytes)) return false;
  }
  return true;
}

Progress StagedAlltoall::meet() {
  const Progress met = entrance_.meet();
  if (met != Progress::kDone) return met;
  read_splits();
  if (!splits_fit()) return Progress::kMismatch;
  const Group& group = entrance_.group();
  std::vector<std::int64_t> rows;
  std::int64_t offset = 0;
  for (int member = 0; member < group.members(); ++member) {
    rows.push_back(split(member, group.member));
    offsets_.push_back(offset);
    offset += rows.back() * options_.row_bytes;
  }
  const std::int64_t largest = std::ranges::max(splits_) * options_.row_bytes;
  rounds_ = largest / piece_bytes_ + (largest % piece_bytes_ != 0 ? 1 : 0);
  output_ = options_.allocate(rows);
  if (rounds_ == 0) return finish();
  state_ = State::kStage;
  return Progress::kMoved;
}

Progress StagedAlltoall::stage_next() {
  if (round_ + 1 < rounds_) {
    stage(round_ + 1);
    entrance_.board().publish_phase(static_cast<std::uint32_t>(round_ + 1));
  }
  state_ = State::kCollect;
  return Progress::kMoved;
}

Progress StagedAlltoall::collect() {
  if (!entrance_.board().all_reached(static_cast<std::uint32_t>(round_))) return Progress::kPending;
  const Group& group = entrance_.group();
  const std::int64_t begin = round_ * piece_bytes_;
  for (int member = 0; output_ != nullptr && member < group.members(); ++member) {
    const auto index = static_cast<std::size_t>(member);
    const std::int64_t bytes = piece_of(split(member, group.member), round_);
    if (bytes == 0) continue;
    const std::byte* from = member == group.member
                                ? options_.input + send_offsets_[index] + begin
                                : entrance_.staging(member) + piece_offset(round_, group.member);
    std::memcpy(output_ + offsets_[index] + begin, from, static_cast<std::size_t>(bytes));
  }
  ++round_;
  if (round_ == rounds_) return finish();
  state_ = State::kStage;
  return Progress::kMoved;
}

Progress StagedAlltoall::finish() {
  entrance_.board().finish();
  state_ = State::kOver;
  return Progress::kDone;
}

}  // namespace farandole
