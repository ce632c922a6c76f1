#include "collective/broadcast.h"

#include <algorithm>
#include <cstring>

namespace farandole {
namespace {

// While the root stages a part, the others copy the previous part. So with r parts, the copying
// takes as long as r + 1 copies of one part, and there are r waits. More parts reduce the time for
// copying, but they need more waits.
constexpr std::int64_t kRoundsWanted = 4;
constexpr std::int64_t kPartBytesMin = 16 * 1024;

Parts parts_of(std::int64_t bytes) {
  const std::int64_t part_bytes_wanted = round_up(rounds_for(bytes, kRoundsWanted), kPartAlignment);
  const std::int64_t part_bytes_max =
      std::min(kRoundBytes, round_up(std::max<std::int64_t>(bytes, 1), kPartAlignment));
  const std::int64_t part_bytes =
      std::clamp(part_bytes_wanted, std::min(kPartBytesMin, part_bytes_max), part_bytes_max);
  return {.bytes = part_bytes, .rounds = rounds_for(bytes, part_bytes)};
}

}  // namespace

Broadcast::Broadcast(const Group& group, const StepIdentity& identity, const Options& options)
    : rounds_(EntryBarrier(group, identity)),
      options_(options),
      parts_(parts_of(options.bytes)),
      exposes_input_(rounds_.entry_barrier().is_worth_exposing(input(), input().size())) {}

std::span<const std::byte> Broadcast::input() const {
  if (!is_root()) return {};
  return {options_.input, static_cast<std::size_t>(options_.bytes)};
}

std::int64_t Broadcast::bytes_in_round(std::int64_t round) const {
  return std::clamp(options_.bytes - round * parts_.bytes, std::int64_t{0}, parts_.bytes);
}

void Broadcast::stage(std::int64_t round) {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const std::int64_t bytes = bytes_in_round(round);
  if (!is_root() || exposes_input_ || bytes == 0 || entry_barrier.group().members() == 1) return;
  std::byte* const to =
      is_inline() ? entry_barrier.own_inline_payload()
                  : entry_barrier.own_staging() + parts_.offset(entry_barrier.identity(), round);
  std::memcpy(to, options_.input + round * parts_.bytes, static_cast<std::size_t>(bytes));
}

void Broadcast::enter(EntryBarrier& entry_barrier) const {
  if (exposes_input_)
    entry_barrier.enter_exposing(options_.bytes, input());
  else
    entry_barrier.enter(options_.bytes);
}

std::optional<std::int64_t> Broadcast::on_all_arrived() {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  if (!entry_barrier.declared_counts_equal() ||
      !entry_barrier.exposes_enough(options_.root, options_.bytes))
    return std::nullopt;
  if (entry_barrier.exposes_input(options_.root) || entry_barrier.group().members() == 1)
    parts_ = {.bytes = options_.bytes, .rounds = options_.bytes == 0 ? 0 : 1};
  return parts_.rounds;
}

bool Broadcast::consume(std::int64_t round) {
  if (is_root() && options_.output == options_.input) return true;
  return copies_.advance(
      {published_data(round), options_.output + round * parts_.bytes, bytes_in_round(round)});
}

const std::byte* Broadcast::published_data(std::int64_t round) const {
  if (is_root()) return options_.input + round * parts_.bytes;
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const auto bytes = static_cast<std::size_t>(options_.bytes);
  if (const std::byte* const exposed = entry_barrier.input(options_.root, bytes);
      exposed != nullptr)
    return exposed;
  if (is_inline()) return entry_barrier.inline_payload(options_.root);
  return entry_barrier.staging(options_.root) + parts_.offset(entry_barrier.identity(), round);
}

}  // namespace farandole
