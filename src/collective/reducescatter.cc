#include "collective/reducescatter.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

// Each round's part has a piece for every member. Pieces are whole cache lines, and so also whole
// elements. Member 0 has the largest share.

namespace farandole {

Reducescatter::Reducescatter(const Group& group, const StepIdentity& identity,
                             const Options& options)
    : rounds_(Entrance(group, identity)),
      options_(options),
      piece_bytes_(std::min(kRoundBytes / group.members() / kPieceAlignment * kPieceAlignment,
                            round_up(share(0).bytes, kPieceAlignment))),
      parts_{.bytes = round_up(piece_bytes_ * group.members(), kPartAlignment),
             .rounds = share(0).bytes == 0 ? 0 : rounds_for(share(0).bytes, piece_bytes_)},
      lends_(rounds_.entrance().is_worth_lending(
          input(), static_cast<std::size_t>(options.bytes() - share(group.member).bytes))) {
  CHECK(kRoundBytes / group.members() >= kPieceAlignment, "every member has a piece of a part");
  CHECK(options.row_bytes % static_cast<std::int64_t>(row_of(options.reduction.dtype).bytes) == 0,
        "a row consists of whole elements");
}

std::span<const std::byte> Reducescatter::input() const {
  return {options_.input, static_cast<std::size_t>(options_.bytes())};
}

Reducescatter::Range Reducescatter::share(int member) const {
  const int members = rounds_.entrance().group().members();
  return {first_scattered_row(options_.rows, members, member) * options_.row_bytes,
          scattered_rows(options_.rows, members, member) * options_.row_bytes};
}

Reducescatter::Range Reducescatter::piece(std::int64_t round, int member) const {
  const Range all = share(member);
  const std::int64_t begin = std::min(round * piece_bytes_, all.bytes);
  return {all.begin + begin, std::min(piece_bytes_, all.bytes - begin)};
}

std::int64_t Reducescatter::piece_offset(std::int64_t round, int member) const {
  return parts_.offset(rounds_.entrance().identity(), round) + member * piece_bytes_;
}

void Reducescatter::stage(std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  const Group& group = entrance.group();
  if (lends_ || options_.bytes() == 0 || group.members() == 1) return;
  if (is_inside()) {
    std::memcpy(entrance.own_inside(), options_.input, static_cast<std::size_t>(options_.bytes()));
    return;
  }
  for (int member = 0; member < group.members(); ++member) {
    const Range part = piece(round, member);
    if (member == group.member || part.bytes == 0) continue;
    std::memcpy(entrance.own_staging() + piece_offset(round, member), options_.input + part.begin,
                static_cast<std::size_t>(part.bytes));
  }
}

void Reducescatter::enter(Entrance& entrance) const {
  if (lends_)
    entrance.enter_lending(options_.bytes(), input());
  else
    entrance.enter(options_.bytes());
}

std::optional<std::int64_t> Reducescatter::meet() {
  const Entrance& entrance = rounds_.entrance();
  const int members = entrance.group().members();
  if (!entrance.extents_equal()) return std::nullopt;
  bool somebody_stages = false;
  for (int member = 0; member < members; ++member) {
    if (!entrance.lends_enough(member, options_.bytes())) return std::nullopt;
    somebody_stages = somebody_stages || !entrance.lends_input(member);
  }
  if (is_inside() || !somebody_stages || members == 1) {
    piece_bytes_ = share(0).bytes;
    parts_.rounds = piece_bytes_ > 0 ? 1 : 0;
  }
  return parts_.rounds;
}

// Pieces are small enough to be reduced in one call; a whole share is not.
bool Reducescatter::take(std::int64_t round) {
  const Group& group = rounds_.entrance().group();
  const std::int64_t left = piece(round, group.member).bytes - reduced_;
  if (left == 0) return true;
  const std::int64_t bytes = std::min(left, kChunkBytes);
  group.inputs.clear();
  for (int member = 0; member < group.members(); ++member)
    group.inputs.push_back(shown(member, round) + reduced_);
  const std::array outputs = {options_.output + round * piece_bytes_ + reduced_};
  reduce(options_.reduction, group.inputs, outputs,
         bytes / static_cast<std::int64_t>(row_of(options_.reduction.dtype).bytes));
  reduced_ = bytes < left ? reduced_ + bytes : 0;
  return bytes == left;
}

const std::byte* Reducescatter::shown(int member, std::int64_t round) const {
  const Entrance& entrance = rounds_.entrance();
  const Group& group = entrance.group();
  const std::int64_t begin = piece(round, group.member).begin;
  if (member == group.member) return options_.input + begin;
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  if (const std::byte* const lent = entrance.input(member, bytes); lent != nullptr)
    return lent + begin;
  if (is_inside()) return entrance.inside(member) + begin;
  return entrance.staging(member) + piece_offset(round, group.member);
}

}  // namespace farandole
