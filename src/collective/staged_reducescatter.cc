#include "collective/staged_reducescatter.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

// Phase w of a member = "my pieces of round w are staged" (0 is the entry itself). A member goes,
// for w = 0, 1, …:  stage w + 1; publish w + 1; wait all ≥ w; reduce its piece of round w.
// All members do all rounds, also those that have nothing left to reduce.
// Round w lives in part w mod 4 of the staging memory. stage(w + 1) overwrites round w − 3. We do
// it after our round w − 1, in which all were at ≥ w − 1, and they publish w − 1 after their round
// w − 3: everybody has read what we showed in round w − 3. So no further phase is needed.
// The next step with this slot is entered only when all are done with this one.

namespace farandole {
namespace {

constexpr std::int64_t kWindow = static_cast<std::int64_t>(kWindowBytes);
constexpr std::int64_t kParts = static_cast<std::int64_t>(kStagingBytesPerSlot) / kWindow;
static_assert(kParts >= 4, "the argument above needs four parts");

// Pieces are whole cache lines, so that no line is for two members; thereby also whole elements.
constexpr std::int64_t kPieceAlignment = 64;

}  // namespace

StagedReducescatter::StagedReducescatter(const Group& group, const StepIdentity& identity,
                                         const Options& options)
    : entrance_(group, identity),
      options_(options),
      piece_bytes_(kWindow / group.members() / kPieceAlignment * kPieceAlignment) {
  CHECK(piece_bytes_ > 0, "every member has a piece of a window");
  CHECK(options.row_bytes % static_cast<std::int64_t>(row_of(options.reduction.dtype).bytes) == 0,
        "a row consists of whole elements");
  // Member 0 has the largest share.
  rounds_ = (share(0).bytes + piece_bytes_ - 1) / piece_bytes_;
}

Progress StagedReducescatter::advance() {
  switch (state_) {
    case State::kEnter:
      return enter();
    case State::kMeet:
      return meet();
    case State::kStage:
      return stage_next();
    case State::kReduce:
      return reduce_piece();
    case State::kOver:
      break;
  }
  CHECK(false, "a step that is over is not advanced");
  return Progress::kDone;
}

StagedReducescatter::Range StagedReducescatter::share(int member) const {
  const int members = entrance_.group().members();
  return {first_scattered_row(options_.rows, members, member) * options_.row_bytes,
          scattered_rows(options_.rows, members, member) * options_.row_bytes};
}

StagedReducescatter::Range StagedReducescatter::piece(std::int64_t round, int member) const {
  const Range all = share(member);
  const std::int64_t begin = std::min(round * piece_bytes_, all.bytes);
  return {all.begin + begin, std::min(piece_bytes_, all.bytes - begin)};
}

std::int64_t StagedReducescatter::piece_offset(std::int64_t round, int member) const {
  return round % kParts * kWindow + member * piece_bytes_;
}

void StagedReducescatter::stage(std::int64_t round) {
  for (int member = 0; member < entrance_.group().members(); ++member) {
    const Range part = piece(round, member);
    if (member == entrance_.group().member || part.bytes == 0) continue;
    std::memcpy(entrance_.own_staging() + piece_offset(round, member), options_.input + part.begin,
                static_cast<std::size_t>(part.bytes));
  }
}

Progress StagedReducescatter::enter() {
  if (!entrance_.may_enter()) return Progress::kPending;
  stage(0);
  entrance_.enter(options_.rows * options_.row_bytes);
  state_ = State::kMeet;
  return Progress::kMoved;
}

Progress StagedReducescatter::meet() {
  const Progress met = entrance_.meet();
  if (met != Progress::kDone) return met;
  if (!entrance_.extents_equal()) return Progress::kMismatch;
  if (rounds_ == 0) return finish();
  state_ = State::kStage;
  return Progress::kMoved;
}

Progress StagedReducescatter::stage_next() {
  if (round_ + 1 < rounds_) {
    stage(round_ + 1);
    entrance_.board().publish_phase(static_cast<std::uint32_t>(round_ + 1));
  }
  state_ = State::kReduce;
  return Progress::kMoved;
}

Progress StagedReducescatter::reduce_piece() {
  if (!entrance_.board().all_reached(static_cast<std::uint32_t>(round_))) return Progress::kPending;
  const Group& group = entrance_.group();
  const Range own = piece(round_, group.member);
  if (own.bytes > 0) {
    inputs_.clear();
    for (int member = 0; member < group.members(); ++member)
      inputs_.push_back(member == group.member
                            ? options_.input + own.begin
                            : entrance_.staging(member) + piece_offset(round_, group.member));
    const std::array outputs = {options_.output + round_ * piece_bytes_};
    reduce(options_.reduction, inputs_, outputs,
           own.bytes / static_cast<std::int64_t>(row_of(options_.reduction.dtype).bytes));
  }
  ++round_;
  if (round_ == rounds_) return finish();
  state_ = State::kStage;
  return Progress::kMoved;
}

Progress StagedReducescatter::finish() {
  entrance_.board().finish();
  state_ = State::kOver;
  return Progress::kDone;
}

}  // namespace farandole
