#include "collective/broadcast.h"

#include <algorithm>
#include <cstring>

namespace farandole {
namespace {

// While the root stages a part, the others copy the one before. So with r rounds, a tensor takes
// the time of r + 1 copies of a part, and each round costs a wait.
constexpr std::int64_t kRoundsWanted = 4;
constexpr std::int64_t kPartMin = 16 * 1024;

Parts parts_of(std::int64_t bytes) {
  const std::int64_t wanted = round_up(rounds_for(bytes, kRoundsWanted), kPartAlignment);
  const std::int64_t most =
      std::min(kRoundBytes, round_up(std::max<std::int64_t>(bytes, 1), kPartAlignment));
  const std::int64_t part = std::clamp(wanted, std::min(kPartMin, most), most);
  return {.bytes = part, .rounds = rounds_for(bytes, part)};
}

}  // namespace

Broadcast::Broadcast(const Group& group, const StepIdentity& identity, const Options& options)
    : rounds_(Entrance(group, identity)),
      options_(options),
      parts_(parts_of(options.bytes)),
      lends_(rounds_.entrance().is_worth_lending(input(), input().size())) {}

std::span<const std::byte> Broadcast::input() const {
  if (!is_root()) return {};
  return {options_.input, static_cast<std::size_t>(options_.bytes)};
}

std::int64_t Broadcast::part_of(std::int64_t round) const {
  return std::clamp(options_.bytes - round * parts_.bytes, std::int64_t{0}, parts_.bytes);
}

void Broadcast::stage(std::int64_t round) {
  const Entrance& entrance = rounds_.entrance();
  const std::int64_t bytes = part_of(round);
  if (!is_root() || lends_ || bytes == 0 || entrance.group().members() == 1) return;
  std::byte* const to = is_inside()
                            ? entrance.own_inside()
                            : entrance.own_staging() + parts_.offset(entrance.identity(), round);
  std::memcpy(to, options_.input + round * parts_.bytes, static_cast<std::size_t>(bytes));
}

void Broadcast::enter(Entrance& entrance) const {
  if (lends_)
    entrance.enter_lending(options_.bytes, input());
  else
    entrance.enter(options_.bytes);
}

std::optional<std::int64_t> Broadcast::meet() {
  const Entrance& entrance = rounds_.entrance();
  if (!entrance.extents_equal() || !entrance.lends_enough(options_.root, options_.bytes))
    return std::nullopt;
  if (entrance.lends_input(options_.root) || entrance.group().members() == 1)
    parts_ = {.bytes = options_.bytes, .rounds = options_.bytes == 0 ? 0 : 1};
  return parts_.rounds;
}

bool Broadcast::take(std::int64_t round) {
  if (is_root() && options_.output == options_.input) return true;
  return copies_.advance({shown(round), options_.output + round * parts_.bytes, part_of(round)});
}

const std::byte* Broadcast::shown(std::int64_t round) const {
  if (is_root()) return options_.input + round * parts_.bytes;
  const Entrance& entrance = rounds_.entrance();
  const auto bytes = static_cast<std::size_t>(options_.bytes);
  if (const std::byte* const lent = entrance.input(options_.root, bytes); lent != nullptr)
    return lent;
  if (is_inside()) return entrance.inside(options_.root);
  return entrance.staging(options_.root) + parts_.offset(entrance.identity(), round);
}

}  // namespace farandole
