#include "collective/staged_reducescatter.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

// The part of a round is a window with a piece for every member. Pieces are whole cache lines,
// thereby also whole elements.

namespace farandole {

StagedReducescatter::StagedReducescatter(const Group& group, const StepIdentity& identity,
                                         const Options& options)
    : rounds_(Entrance(group, identity)),
      options_(options),
      piece_bytes_(kWindow / group.members() / kPieceAlignment * kPieceAlignment) {
  CHECK(piece_bytes_ > 0, "every member has a piece of a window");
  CHECK(options.row_bytes % static_cast<std::int64_t>(row_of(options.reduction.dtype).bytes) == 0,
        "a row consists of whole elements");
}

StagedReducescatter::Range StagedReducescatter::share(int member) const {
  const int members = rounds_.entrance().group().members();
  return {first_scattered_row(options_.rows, members, member) * options_.row_bytes,
          scattered_rows(options_.rows, members, member) * options_.row_bytes};
}

StagedReducescatter::Range StagedReducescatter::piece(std::int64_t round, int member) const {
  const Range all = share(member);
  const std::int64_t begin = std::min(round * piece_bytes_, all.bytes);
  return {all.begin + begin, std::min(piece_bytes_, all.bytes - begin)};
}

std::int64_t StagedReducescatter::piece_offset(std::int64_t round, int member) const {
  return round % kRoundParts * kWindow + member * piece_bytes_;
}

void StagedReducescatter::stage(std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  for (int member = 0; member < entrance.group().members(); ++member) {
    const Range part = piece(round, member);
    if (member == entrance.group().member || part.bytes == 0) continue;
    std::memcpy(entrance.own_staging() + piece_offset(round, member), options_.input + part.begin,
                static_cast<std::size_t>(part.bytes));
  }
}

std::optional<std::int64_t> StagedReducescatter::meet() const {
  if (!rounds_.entrance().extents_equal()) return std::nullopt;
  // Member 0 has the largest share.
  return (share(0).bytes + piece_bytes_ - 1) / piece_bytes_;
}

bool StagedReducescatter::take(std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  const Group& group = entrance.group();
  const Range own = piece(round, group.member);
  if (own.bytes == 0) return true;
  inputs_.clear();
  for (int member = 0; member < group.members(); ++member)
    inputs_.push_back(member == group.member
                          ? options_.input + own.begin
                          : entrance.staging(member) + piece_offset(round, group.member));
  const std::array outputs = {options_.output + round * piece_bytes_};
  reduce(options_.reduction, inputs_, outputs,
         own.bytes / static_cast<std::int64_t>(row_of(options_.reduction.dtype).bytes));
  return true;
}

}  // namespace farandole
