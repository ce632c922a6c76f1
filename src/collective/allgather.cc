#include "collective/allgather.h"

#include <algorithm>
#include <cstring>
#include <utility>

// A member that stages its part publishes the part window by window. All other parts are copied as
// a whole in round 0. The group's scratch lists hold the number of rows of each member and the
// offset of these rows in the output.

namespace farandole {
namespace {

// The layout of the staging memory for a member that stages `bytes` bytes.
Parts staging_parts(std::int64_t bytes) {
  return {.bytes = std::min(kRoundBytes, round_up(bytes, kPartAlignment)),
          .rounds = rounds_for(bytes, kRoundBytes)};
}

// How many of the `bytes` bytes of one member are copied in this round.
std::int64_t bytes_in_round(std::int64_t bytes, std::int64_t round) {
  return std::clamp(bytes - round * kRoundBytes, std::int64_t{0}, kRoundBytes);
}

}  // namespace

Allgather::Allgather(Group& group, const StepIdentity& identity, Options options)
    : rounds_(EntryBarrier(group, identity)),
      scratch_(&group.scratch),
      options_(std::move(options)),
      exposes_input_(rounds_.entry_barrier().is_worth_exposing(own_part(), own_part().size())) {}

std::span<const std::byte> Allgather::own_part() const {
  return {options_.input, static_cast<std::size_t>(options_.rows * options_.row_bytes)};
}

void Allgather::stage(std::int64_t round) {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const std::span<const std::byte> own = own_part();
  if (exposes_input_ || own.empty() || entry_barrier.group().members() == 1) return;
  if (own.size() <= kInlineBytes) {
    if (round == 0) std::memcpy(entry_barrier.own_inline_payload(), own.data(), own.size());
    return;
  }
  const auto total_bytes = static_cast<std::int64_t>(own.size());
  const std::int64_t bytes = bytes_in_round(total_bytes, round);
  if (bytes > 0)
    std::memcpy(entry_barrier.own_staging() +
                    staging_parts(total_bytes).offset(entry_barrier.identity(), round),
                own.data() + round * kRoundBytes, static_cast<std::size_t>(bytes));
}

void Allgather::enter(EntryBarrier& entry_barrier) const {
  if (exposes_input_)
    entry_barrier.enter_exposing(options_.rows, own_part());
  else
    entry_barrier.enter(options_.rows);
}

bool Allgather::is_staged(int member, std::int64_t bytes) const {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  return bytes > static_cast<std::int64_t>(kInlineBytes) && entry_barrier.group().members() > 1 &&
         !entry_barrier.exposes_input(member);
}

std::optional<std::int64_t> Allgather::on_all_arrived() {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  scratch_->counts.clear();
  scratch_->offsets.clear();
  std::int64_t rounds = 0;
  std::int64_t total = 0;
  for (int member = 0; member < group.members(); ++member) {
    const std::int64_t rows = entry_barrier.declared_count(member);
    std::int64_t bytes = 0;
    std::int64_t end = 0;
    if (__builtin_mul_overflow(rows, options_.row_bytes, &bytes) ||
        __builtin_add_overflow(total, bytes, &end) || !entry_barrier.exposes_enough(member, bytes))
      return std::nullopt;
    scratch_->counts.push_back(rows);
    scratch_->offsets.push_back(std::exchange(total, end));
    if (bytes > 0)
      rounds = std::max(rounds, is_staged(member, bytes) ? rounds_for(bytes, kRoundBytes) : 1);
  }
  output_ = options_.allocate(scratch_->counts);
  return rounds;
}

bool Allgather::consume(std::int64_t round) {
  if (output_ == nullptr) return true;
  return copies_.advance(rounds_.entry_barrier().group(),
                         [&](int member) { return copy_of(member, round); });
}

Copy Allgather::copy_of(int member, std::int64_t round) const {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  const auto index = static_cast<std::size_t>(member);
  const std::int64_t bytes = scratch_->counts[index] * options_.row_bytes;
  std::byte* const to = output_ + scratch_->offsets[index];
  const bool is_own = member == group.member;
  if (is_staged(member, bytes)) {
    const std::int64_t begin = round * kRoundBytes;
    const std::byte* const published_data =
        entry_barrier.staging(member) +
        staging_parts(bytes).offset(entry_barrier.identity(), round);
    return {is_own ? options_.input + begin : published_data, to + begin,
            bytes_in_round(bytes, round)};
  }
  if (round > 0 || bytes == 0) return {};
  if (is_own) return {options_.input, to, bytes};
  const std::byte* const exposed = entry_barrier.input(member, static_cast<std::size_t>(bytes));
  return {exposed != nullptr ? exposed : entry_barrier.inline_payload(member), to, bytes};
}

}  // namespace farandole
