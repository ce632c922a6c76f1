#include "collective/two_shot_allreduce.h"

#include <algorithm>
#include <cstring>

namespace farandole {
namespace {

// Slices begin at multiples of a cache line, so that two members never write to the same one; large
// ones at multiples of a page, so that a page is written by one member.
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kPagesMin = 16;

// Beyond the second-level cache moving less is quicker again.
constexpr std::int64_t kReducedByAllMax = 512 * 1024;

}  // namespace

TwoShotAllreduce::TwoShotAllreduce(const Group& group, const StepIdentity& identity,
                                   const AllreduceOptions& options)
    : shots_(Entrance(group, identity)),
      options_(options),
      shows_(!options.joined && group.members() > 1 &&
             !shots_.entrance().is_visible(
                 {options.input, static_cast<std::size_t>(options.bytes())})) {}

TwoShotAllreduce::Range TwoShotAllreduce::window(std::int64_t index) const {
  if (is_one_window_) return {0, options_.count};
  const std::int64_t full = kRoundBytes / options_.element_bytes();
  const std::int64_t begin = index * full;
  return {begin, std::min(full, options_.count - begin)};
}

TwoShotAllreduce::Range TwoShotAllreduce::slice(Range window, int member) const {
  const std::int64_t members = shots_.entrance().group().members();
  const std::int64_t fair = (window.count + members - 1) / members;
  const bool large = fair * options_.element_bytes() >= kPagesMin * kPageBytes;
  const std::int64_t full =
      round_up(fair, (large ? kPageBytes : kLineBytes) / options_.element_bytes());
  const std::int64_t begin = std::min(full * member, window.count);
  return {begin, std::min(full, window.count - begin)};
}

std::int64_t TwoShotAllreduce::part_offset(std::int64_t index) const {
  const Parts parts = {.bytes = std::min(kRoundBytes, round_up(options_.bytes(), kPartAlignment)),
                       .rounds = windows()};
  return parts.offset(shots_.entrance().identity(), index);
}

std::span<const std::byte> TwoShotAllreduce::input() const {
  if (options_.joined) return {};
  return {options_.input, static_cast<std::size_t>(options_.bytes())};
}

std::span<const std::byte> TwoShotAllreduce::output() const {
  if (options_.joined) return {};
  return {options_.output, static_cast<std::size_t>(options_.bytes())};
}

// Copies the slices that the other members reduce; our own is read from the input directly.
void TwoShotAllreduce::stage(std::int64_t index) {
  if (!shows_ || options_.count == 0) return;
  const Entrance& entrance = shots_.entrance();
  const std::int64_t size = options_.element_bytes();
  const Range whole = window(index);
  const Range own = slice(whole, entrance.group().member);
  std::byte* const to = entrance.own_staging() + part_offset(index);
  const std::byte* const from = options_.input + whole.begin * size;
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end)
      std::memcpy(to + begin * size, from + begin * size,
                  static_cast<std::size_t>((end - begin) * size));
  };
  copy(0, own.begin);
  copy(own.begin + own.count, whole.count);
}

void TwoShotAllreduce::enter(Entrance& entrance) const {
  entrance.enter_lending(extent_of(options_), input(), output());
}

std::optional<std::int64_t> TwoShotAllreduce::meet() {
  const Entrance& entrance = shots_.entrance();
  const int present = count_present(entrance, options_.bytes());
  if (present == 0) return std::nullopt;
  divide_by(options_.reduction, present);
  if (options_.count == 0) return 0;
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  const int members = entrance.group().members();
  bool all_lend = true;
  bool all_apart = members == 2 && options_.bytes() <= kReducedByAllMax;
  somebody_fetches_ = false;
  for (int member = 0; member < members; ++member) {
    if (has_joined(entrance, member)) continue;
    if (!entrance.lends_enough(member, options_.bytes())) return std::nullopt;
    const Entry said = entrance.board().entry(member);
    all_apart = all_apart && said.input != said.output;
    all_lend = all_lend && entrance.input(member, bytes) != nullptr;
    somebody_fetches_ = somebody_fetches_ || entrance.output(member, bytes) == nullptr;
  }
  reduces_all_ = all_lend && all_apart;
  // Alone there is nobody who would have to see it.
  if (members == 1 || reduces_all_) somebody_fetches_ = false;
  is_one_window_ = members == 1 || (all_lend && !somebody_fetches_);
  return is_one_window_ ? 1 : windows();
}

// Windows are small enough to be reduced at once; a whole tensor is not.
bool TwoShotAllreduce::reduce(std::int64_t index) {
  Range own = slice(window(index), shots_.entrance().group().member);
  if (reduces_all_) own = {0, options_.joined ? 0 : options_.count};
  const std::int64_t chunk = kChunkBytes / options_.element_bytes();
  const std::int64_t count = std::min(chunk, own.count - reduced_);
  if (count > 0) reduce_range(index, {own.begin + reduced_, count});
  reduced_ += count;
  if (reduced_ < own.count) return false;
  reduced_ = 0;
  return true;
}

// `range` is counted in the window.
void TwoShotAllreduce::reduce_range(std::int64_t index, Range range) {
  const Entrance& entrance = shots_.entrance();
  const Group& group = entrance.group();
  const std::int64_t size = options_.element_bytes();
  const std::int64_t in_window = range.begin * size;
  const std::int64_t in_tensor = window(index).begin * size + in_window;
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  group.inputs.clear();
  group.outputs.clear();
  for (int member = 0; member < group.members(); ++member) {
    if (has_joined(entrance, member)) continue;
    const bool ours = member == group.member;
    const std::byte* const lent = ours ? options_.input : entrance.input(member, bytes);
    group.inputs.push_back(lent != nullptr
                               ? lent + in_tensor
                               : entrance.staging(member) + part_offset(index) + in_window);
    std::byte* const wanted = ours           ? options_.output
                              : reduces_all_ ? nullptr
                                             : entrance.output(member, bytes);
    if (wanted != nullptr) group.outputs.push_back(wanted + in_tensor);
  }
  if (somebody_fetches_)
    group.outputs.push_back(entrance.own_staging() + part_offset(index) + in_window);
  farandole::reduce(options_.reduction, group.inputs, group.outputs, range.count);
}

void TwoShotAllreduce::fetch(std::int64_t index) {
  const Entrance& entrance = shots_.entrance();
  const Group& group = entrance.group();
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  const bool is_there = is_one_window_ || entrance.output(group.member, bytes) != nullptr;
  if (options_.joined || is_there) return;
  const std::int64_t size = options_.element_bytes();
  const Range whole = window(index);
  for (int member = 0; member < group.members(); ++member) {
    const Range part = slice(whole, member);
    if (member == group.member || part.count == 0) continue;
    std::memcpy(options_.output + (whole.begin + part.begin) * size,
                entrance.staging(member) + part_offset(index) + part.begin * size,
                static_cast<std::size_t>(part.count * size));
  }
}

}  // namespace farandole
