#include "collective/reducescatter.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

// The part of a round has a piece for every member. A piece is a multiple of a cache line, and so
// has only whole elements. Member 0 has the largest share.

namespace farandole {

Reducescatter::Reducescatter(Group& group, const StepIdentity& identity, const Options& options)
    : rounds_(EntryBarrier(group, identity)),
      scratch_(&group.scratch),
      options_(options),
      piece_bytes_(std::min(kRoundBytes / group.members() / kPieceAlignment * kPieceAlignment,
                            round_up(share(0).bytes, kPieceAlignment))),
      parts_{.bytes = round_up(piece_bytes_ * group.members(), kPartAlignment),
             .rounds = share(0).bytes == 0 ? 0 : rounds_for(share(0).bytes, piece_bytes_)},
      exposes_input_(rounds_.entry_barrier().is_worth_exposing(
          input(), static_cast<std::size_t>(options.bytes() - share(group.member).bytes))) {
  CHECK(kRoundBytes / group.members() >= kPieceAlignment, "every member has a piece of a part");
  CHECK(options.row_bytes % static_cast<std::int64_t>(row_of(options.reduction.dtype).bytes) == 0,
        "a row consists of whole elements");
}

std::span<const std::byte> Reducescatter::input() const {
  return {options_.input, static_cast<std::size_t>(options_.bytes())};
}

Reducescatter::Range Reducescatter::share(int member) const {
  const int members = rounds_.entry_barrier().group().members();
  return {first_scattered_row(options_.rows, members, member) * options_.row_bytes,
          scattered_rows(options_.rows, members, member) * options_.row_bytes};
}

Reducescatter::Range Reducescatter::piece(std::int64_t round, int member) const {
  const Range whole_share = share(member);
  const std::int64_t begin = std::min(round * piece_bytes_, whole_share.bytes);
  return {whole_share.begin + begin, std::min(piece_bytes_, whole_share.bytes - begin)};
}

std::int64_t Reducescatter::piece_offset(std::int64_t round, int member) const {
  return parts_.offset(rounds_.entry_barrier().identity(), round) + member * piece_bytes_;
}

void Reducescatter::stage(std::int64_t round) {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  if (exposes_input_ || options_.bytes() == 0 || group.members() == 1) return;
  if (is_inline()) {
    std::memcpy(entry_barrier.own_inline_payload(), options_.input,
                static_cast<std::size_t>(options_.bytes()));
    return;
  }
  for (int member = 0; member < group.members(); ++member) {
    const Range part = piece(round, member);
    if (member == group.member || part.bytes == 0) continue;
    std::memcpy(entry_barrier.own_staging() + piece_offset(round, member),
                options_.input + part.begin, static_cast<std::size_t>(part.bytes));
  }
}

void Reducescatter::enter(EntryBarrier& entry_barrier) const {
  if (exposes_input_)
    entry_barrier.enter_exposing(options_.bytes(), input());
  else
    entry_barrier.enter(options_.bytes());
}

std::optional<std::int64_t> Reducescatter::on_all_arrived() {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const int members = entry_barrier.group().members();
  if (!entry_barrier.declared_counts_equal()) return std::nullopt;
  bool any_member_stages = false;
  for (int member = 0; member < members; ++member) {
    if (!entry_barrier.exposes_enough(member, options_.bytes())) return std::nullopt;
    any_member_stages = any_member_stages || !entry_barrier.exposes_input(member);
  }
  if (is_inline() || !any_member_stages || members == 1) {
    piece_bytes_ = share(0).bytes;
    parts_.rounds = piece_bytes_ > 0 ? 1 : 0;
  }
  return parts_.rounds;
}

// One call reduces a whole piece. If a share is not divided into pieces, one call reduces
// kBytesPerAdvance bytes of it.
bool Reducescatter::consume(std::int64_t round) {
  const Group& group = rounds_.entry_barrier().group();
  const std::int64_t bytes_left = piece(round, group.member).bytes - reduced_bytes_;
  if (bytes_left == 0) return true;
  const std::int64_t bytes = std::min(bytes_left, kBytesPerAdvance);
  scratch_->inputs.clear();
  for (int member = 0; member < group.members(); ++member)
    scratch_->inputs.push_back(published_data(member, round) + reduced_bytes_);
  const std::array outputs = {options_.output + round * piece_bytes_ + reduced_bytes_};
  reduce(options_.reduction, scratch_->inputs, outputs,
         bytes / static_cast<std::int64_t>(row_of(options_.reduction.dtype).bytes));
  reduced_bytes_ = bytes < bytes_left ? reduced_bytes_ + bytes : 0;
  return bytes == bytes_left;
}

const std::byte* Reducescatter::published_data(int member, std::int64_t round) const {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  const std::int64_t begin = piece(round, group.member).begin;
  if (member == group.member) return options_.input + begin;
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  if (const std::byte* const exposed = entry_barrier.input(member, bytes); exposed != nullptr)
    return exposed + begin;
  if (is_inline()) return entry_barrier.inline_payload(member) + begin;
  return entry_barrier.staging(member) + piece_offset(round, group.member);
}

}  // namespace farandole
