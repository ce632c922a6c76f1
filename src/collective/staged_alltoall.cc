#include "collective/staged_alltoall.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

// The splits lie before the parts of the rounds, and nothing overwrites them. A part has a piece
// for every member.

namespace farandole {
namespace {

constexpr std::int64_t kStaging = static_cast<std::int64_t>(kStagingBytesPerSlot);
constexpr std::int64_t kSplitBytes = sizeof(std::int64_t);

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr std::int64_t round_down(std::int64_t value, std::int64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace

StagedAlltoall::StagedAlltoall(const Group& group, const StepIdentity& identity, Options options)
    : rounds_(Entrance(group, identity)),
      options_(std::move(options)),
      splits_bytes_(round_up(group.members() * kSplitBytes, kPieceAlignment)),
      part_bytes_(round_down((kStaging - splits_bytes_) / kRoundParts, kPieceAlignment)),
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

std::int64_t StagedAlltoall::split(int from, int to) const {
  const auto members = static_cast<std::size_t>(rounds_.entrance().group().members());
  return splits_[static_cast<std::size_t>(from) * members + static_cast<std::size_t>(to)];
}

std::int64_t StagedAlltoall::piece_of(std::int64_t rows, std::int64_t round) const {
  return std::clamp(rows * options_.row_bytes - round * piece_bytes_, std::int64_t{0},
                    piece_bytes_);
}

std::int64_t StagedAlltoall::piece_offset(std::int64_t round, int member) const {
  return splits_bytes_ + round % kRoundParts * part_bytes_ + member * piece_bytes_;
}

void StagedAlltoall::stage_splits() {
  std::memcpy(rounds_.entrance().own_staging(), options_.splits.data(),
              options_.splits.size() * static_cast<std::size_t>(kSplitBytes));
}

void StagedAlltoall::stage(std::int64_t round) {
  if (round == 0) stage_splits();
  const Group& group = rounds_.entrance().group();
  for (int member = 0; member < group.members(); ++member) {
    const auto index = static_cast<std::size_t>(member);
    const std::int64_t bytes = piece_of(options_.splits[index], round);
    if (member == group.member || bytes == 0) continue;
    std::memcpy(rounds_.entrance().own_staging() + piece_offset(round, member),
                options_.input + send_offsets_[index] + round * piece_bytes_,
                static_cast<std::size_t>(bytes));
  }
}

// Copied before they are checked: what is checked cannot change any more.
void StagedAlltoall::read_splits() {
  const auto members = static_cast<std::size_t>(rounds_.entrance().group().members());
  splits_.resize(members * members);
  for (std::size_t member = 0; member < members; ++member)
    std::memcpy(&splits_[member * members], rounds_.entrance().staging(static_cast<int>(member)),
                members * static_cast<std::size_t>(kSplitBytes));
}

// The same answer on all members: nobody sends more than it has, and no number overflows.
bool StagedAlltoall::splits_fit() const {
  const int members = rounds_.entrance().group().members();
  for (int member = 0; member < members; ++member) {
    std::int64_t left = rounds_.entrance().extent(member);
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

std::optional<std::int64_t> StagedAlltoall::meet() {
  read_splits();
  if (!splits_fit()) return std::nullopt;
  const Group& group = rounds_.entrance().group();
  std::vector<std::int64_t> rows;
  std::int64_t offset = 0;
  for (int member = 0; member < group.members(); ++member) {
    rows.push_back(split(member, group.member));
    offsets_.push_back(offset);
    offset += rows.back() * options_.row_bytes;
  }
  const std::int64_t largest = std::ranges::max(splits_) * options_.row_bytes;
  output_ = options_.allocate(rows);
  return largest / piece_bytes_ + (largest % piece_bytes_ != 0 ? 1 : 0);
}

bool StagedAlltoall::take(std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  const Group& group = entrance.group();
  const std::int64_t begin = round * piece_bytes_;
  for (int member = 0; output_ != nullptr && member < group.members(); ++member) {
    const auto index = static_cast<std::size_t>(member);
    const std::int64_t bytes = piece_of(split(member, group.member), round);
    if (bytes == 0) continue;
    const std::byte* from = member == group.member
                                ? options_.input + send_offsets_[index] + begin
                                : entrance.staging(member) + piece_offset(round, group.member);
    std::memcpy(output_ + offsets_[index] + begin, from, static_cast<std::size_t>(bytes));
  }
  return true;
}

}  // namespace farandole
