#include "collective/alltoall.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

// The splits are in the flag line. If there are too many members for that, the splits are at the
// end of the staging memory. There, no round overwrites them. The part of a round has a piece for
// every member. A member copies staged data piece by piece. It copies inline and exposed data as a
// whole in round 0. The group's scratch lists hold the splits of all members, the number of rows
// that each member sends to us, and the offsets of those rows in the output.

namespace farandole {
namespace {

constexpr std::int64_t kSlotBytes = static_cast<std::int64_t>(kStagingBytesPerSlot);
constexpr std::int64_t kInlinePayloadBytes = static_cast<std::int64_t>(kInlineBytes);
constexpr std::int64_t kSplitBytes = sizeof(std::int64_t);

constexpr std::int64_t round_down(std::int64_t value, std::int64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace

Alltoall::Alltoall(Group& group, const StepIdentity& identity, Options options)
    : rounds_(EntryBarrier(group, identity)),
      scratch_(&group.scratch),
      options_(std::move(options)),
      splits_bytes_(group.members() * kSplitBytes),
      piece_bytes_max_(
          round_down(round_down(staging_bytes() / kPartsMin, kPartAlignment) / group.members(),
                     kPieceAlignment)) {
  CHECK(piece_bytes_max_ > 0, "every member has a piece of a part");
  CHECK(options_.splits.size() == group.ranks.size(), "there is one split for each member");
  std::int64_t sent_rows = 0;
  for (const std::int64_t rows : options_.splits) {
    CHECK(rows >= 0 && rows <= options_.rows - sent_rows, "the splits do not exceed the rows");
    sent_rows += rows;
  }
  sent_bytes_ = sent_rows * options_.row_bytes;
  if (!is_inline(sent_bytes_))
    exposes_input_ = rounds_.entry_barrier().is_worth_exposing(
        {options_.input, static_cast<std::size_t>(sent_bytes_)},
        static_cast<std::size_t>(sent_bytes_));
}

bool Alltoall::are_splits_inline() const { return splits_bytes_ <= kInlinePayloadBytes; }

bool Alltoall::is_inline(std::int64_t sent_bytes) const {
  return sent_bytes <= kInlinePayloadBytes - splits_bytes_;
}

std::int64_t Alltoall::staging_bytes() const {
  return are_splits_inline() ? kSlotBytes : kSlotBytes - round_up(splits_bytes_, kPieceAlignment);
}

// The layout of the staging memory of a member that stages its data and sends at most
// `largest_share` bytes to any other member.
Alltoall::PieceLayout Alltoall::piece_layout_of(std::int64_t largest_share) const {
  const std::int64_t bytes = std::min(piece_bytes_max_, round_up(largest_share, kPieceAlignment));
  return {.bytes = bytes,
          .parts = {
              .bytes = round_up(bytes * rounds_.entry_barrier().group().members(), kPartAlignment),
              .rounds = rounds_for(largest_share, bytes),
              .staging_bytes = staging_bytes()}};
}

Alltoall::Range Alltoall::piece_of(std::int64_t share_bytes, const PieceLayout& pieces,
                                   std::int64_t round) {
  const std::int64_t begin = std::min(round * pieces.bytes, share_bytes);
  return {begin, std::min(pieces.bytes, share_bytes - begin)};
}

void Alltoall::stage(std::int64_t round) {
  if (round == 0) stage_splits();
  if (!exposes_input_ && !is_inline(sent_bytes_)) stage_pieces(round);
}

void Alltoall::stage_splits() {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  std::byte* const to = are_splits_inline() ? entry_barrier.own_inline_payload()
                                            : entry_barrier.own_staging() + staging_bytes();
  std::memcpy(to, options_.splits.data(), static_cast<std::size_t>(splits_bytes_));
  if (sent_bytes_ > 0 && is_inline(sent_bytes_) && entry_barrier.group().members() > 1)
    std::memcpy(to + splits_bytes_, options_.input, static_cast<std::size_t>(sent_bytes_));
}

void Alltoall::stage_pieces(std::int64_t round) {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const int own_member = entry_barrier.group().member;
  const std::span<const std::int64_t> splits = options_.splits;
  std::int64_t largest_share = 0;
  for (std::size_t to = 0; to < splits.size(); ++to)
    if (static_cast<int>(to) != own_member)
      largest_share = std::max(largest_share, splits[to] * options_.row_bytes);
  if (largest_share == 0) return;
  const PieceLayout pieces = piece_layout_of(largest_share);
  std::byte* const part =
      entry_barrier.own_staging() + pieces.parts.offset(entry_barrier.identity(), round);
  std::int64_t bytes_before = 0;
  for (int to = 0; to < entry_barrier.group().members(); ++to) {
    const std::int64_t share_bytes = splits[static_cast<std::size_t>(to)] * options_.row_bytes;
    const Range piece = piece_of(share_bytes, pieces, round);
    if (to != own_member && piece.bytes > 0)
      std::memcpy(part + to * pieces.bytes, options_.input + bytes_before + piece.begin,
                  static_cast<std::size_t>(piece.bytes));
    bytes_before += share_bytes;
  }
}

void Alltoall::enter(EntryBarrier& entry_barrier) const {
  if (exposes_input_)
    entry_barrier.enter_exposing(options_.rows,
                                 {options_.input, static_cast<std::size_t>(sent_bytes_)});
  else
    entry_barrier.enter(options_.rows);
}

std::int64_t Alltoall::split(int from, int to) const {
  const Group& group = rounds_.entry_barrier().group();
  const auto members = static_cast<std::size_t>(group.members());
  return scratch_->splits[static_cast<std::size_t>(from) * members + static_cast<std::size_t>(to)];
}

// Copies the splits of all members out of shared memory before splits_are_valid() checks them, so
// that they cannot change after the check.
void Alltoall::read_splits() {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  const auto members = static_cast<std::size_t>(group.members());
  scratch_->splits.resize(members * members);
  for (std::size_t index = 0; index < members; ++index) {
    const int member = static_cast<int>(index);
    std::memcpy(&scratch_->splits[index * members],
                are_splits_inline() ? entry_barrier.inline_payload(member)
                                    : entry_barrier.staging(member) + staging_bytes(),
                static_cast<std::size_t>(splits_bytes_));
  }
}

// Returns false if a member sends more than it has, or if a sum overflows. The result is the same
// on all members.
bool Alltoall::splits_are_valid() const {
  const int members = rounds_.entry_barrier().group().members();
  for (int member = 0; member < members; ++member) {
    std::int64_t rows_left = rounds_.entry_barrier().declared_count(member);
    std::int64_t received_rows = 0;
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(rows_left, options_.row_bytes, &bytes)) return false;
    for (int other = 0; other < members; ++other) {
      const std::int64_t sent_rows = split(member, other);
      if (sent_rows < 0 || sent_rows > rows_left) return false;
      rows_left -= sent_rows;
      if (__builtin_add_overflow(received_rows, split(other, member), &received_rows)) return false;
    }
    if (__builtin_mul_overflow(received_rows, options_.row_bytes, &bytes)) return false;
  }
  return true;
}

// Call it only if splits_are_valid() has returned true.
Alltoall::SentBytes Alltoall::sent_bytes_of(int member) const {
  const Group& group = rounds_.entry_barrier().group();
  SentBytes sent;
  for (int other = 0; other < group.members(); ++other) {
    const std::int64_t bytes = split(member, other) * options_.row_bytes;
    sent.total += bytes;
    if (other < group.member) sent.before_us += bytes;
    if (other != member) sent.largest_share = std::max(sent.largest_share, bytes);
  }
  return sent;
}

std::optional<std::int64_t> Alltoall::on_all_arrived() {
  read_splits();
  if (!splits_are_valid()) return std::nullopt;
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  scratch_->counts.clear();
  scratch_->offsets.clear();
  std::int64_t rounds = 0;
  std::int64_t offset = 0;
  for (int member = 0; member < group.members(); ++member) {
    const SentBytes sent = sent_bytes_of(member);
    if (!entry_barrier.exposes_enough(member, sent.total)) return std::nullopt;
    const bool stages = !is_inline(sent.total) && !entry_barrier.exposes_input(member);
    if (sent.total > 0)
      rounds = std::max(
          {rounds, std::int64_t{1}, stages ? rounds_for(sent.largest_share, piece_bytes_max_) : 0});
    scratch_->counts.push_back(split(member, group.member));
    scratch_->offsets.push_back(offset);
    offset += scratch_->counts.back() * options_.row_bytes;
  }
  output_ = options_.allocate(scratch_->counts);
  return rounds;
}

bool Alltoall::consume(std::int64_t round) {
  if (output_ == nullptr) return true;
  return copies_.advance(rounds_.entry_barrier().group(),
                         [&](int member) { return copy_of(member, round); });
}

Copy Alltoall::copy_of(int member, std::int64_t round) const {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  const auto index = static_cast<std::size_t>(member);
  const std::int64_t bytes = scratch_->counts[index] * options_.row_bytes;
  if (bytes == 0) return {};
  std::byte* const to = output_ + scratch_->offsets[index];
  const SentBytes sent = sent_bytes_of(member);
  const std::byte* source = options_.input;
  if (member != group.member) {
    source = entry_barrier.input(member, static_cast<std::size_t>(sent.total));
    if (source == nullptr && is_inline(sent.total))
      source = entry_barrier.inline_payload(member) + splits_bytes_;
  }
  if (source != nullptr) return round == 0 ? Copy{source + sent.before_us, to, bytes} : Copy{};
  const PieceLayout pieces = piece_layout_of(sent.largest_share);
  const Range piece = piece_of(bytes, pieces, round);
  return {entry_barrier.staging(member) + pieces.parts.offset(entry_barrier.identity(), round) +
              group.member * pieces.bytes,
          to + piece.begin, piece.bytes};
}

}  // namespace farandole
