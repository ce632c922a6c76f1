#include "collective/staged_allgather.h"

#include <algorithm>
#include <cstring>
#include <utility>

// The part of a round is one window of what a member brings.

namespace farandole {
namespace {

constexpr std::int64_t part_offset(std::int64_t round) { return round % kRoundParts * kWindow; }

// How much of `bytes` a round carries.
std::int64_t part_of(std::int64_t bytes, std::int64_t round) {
  return std::clamp(bytes - round * kWindow, std::int64_t{0}, kWindow);
}

}  // namespace

StagedAllgather::StagedAllgather(const Group& group, const StepIdentity& identity, Options options)
    : rounds_(Entrance(group, identity)), options_(std::move(options)) {}

void StagedAllgather::stage(std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  const std::int64_t bytes = part_of(options_.rows * options_.row_bytes, round);
  if (bytes > 0 && entrance.group().members() > 1)
    std::memcpy(entrance.own_staging() + part_offset(round), options_.input + round * kWindow,
                static_cast<std::size_t>(bytes));
}

std::optional<std::int64_t> StagedAllgather::meet() {
  const Entrance& entrance = rounds_.entrance();
  std::int64_t rounds = 0;
  std::int64_t total = 0;
  for (int member = 0; member < entrance.group().members(); ++member) {
    const std::int64_t rows = entrance.extent(member);
    std::int64_t bytes = 0;
    std::int64_t end = 0;
    if (__builtin_mul_overflow(rows, options_.row_bytes, &bytes) ||
        __builtin_add_overflow(total, bytes, &end))
      return std::nullopt;
    rows_.push_back(rows);
    offsets_.push_back(std::exchange(total, end));
    rounds = std::max(rounds, bytes / kWindow + (bytes % kWindow != 0 ? 1 : 0));
  }
  output_ = options_.allocate(rows_);
  return rounds;
}

// Copies from as many members as make up about one window.
bool StagedAllgather::take(std::int64_t round) {
  const int members = rounds_.entrance().group().members();
  for (std::int64_t copied = 0; next_member_ < members && copied < kWindow; ++next_member_)
    copied += take_from(next_member_, round);
  if (next_member_ < members) return false;
  next_member_ = 0;
  return true;
}

std::int64_t StagedAllgather::take_from(int member, std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  const std::int64_t bytes = part_of(entrance.extent(member) * options_.row_bytes, round);
  if (bytes == 0 || output_ == nullptr) return 0;
  const std::byte* from = member == entrance.group().member
                              ? options_.input + round * kWindow
                              : entrance.staging(member) + part_offset(round);
  std::memcpy(output_ + offsets_[static_cast<std::size_t>(member)] + round * kWindow, from,
              static_cast<std::size_t>(bytes));
  return bytes;
}

}  // namespace farandole
