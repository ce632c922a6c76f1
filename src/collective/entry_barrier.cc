#include "collective/entry_barrier.h"

namespace farandole {

std::uint64_t EntryBarrier::location_of(std::span<const std::byte> memory) const {
  if (group_->heap == nullptr || memory.empty()) return kNoLocation;
  return group_->heap->location_of(memory.data(), memory.size()).value_or(kNoLocation);
}

bool EntryBarrier::is_visible(std::span<const std::byte> memory) const {
  return location_of(memory) != kNoLocation;
}

bool EntryBarrier::is_worth_exposing(std::span<const std::byte> memory, std::size_t bytes) const {
  const auto bytes_moved = 2 * static_cast<std::int64_t>(bytes);  // one load and one store per byte
  return bytes > kInlineBytes && group_->members() > 1 && bytes_moved > group_->costs.wait_bytes &&
         is_visible(memory);
}

void EntryBarrier::enter_exposing(std::int64_t declared_count, std::span<const std::byte> input,
                                  std::span<const std::byte> output) {
  enter(declared_count, location_of(input), location_of(output));
}

std::byte* EntryBarrier::exposed_memory(int member, std::uint64_t location,
                                        std::size_t bytes) const {
  if (location == kNoLocation) return nullptr;
  return group_->heaps[static_cast<std::size_t>(member)]->at(location, bytes);
}

const std::byte* EntryBarrier::input(int member, std::size_t bytes) const {
  return exposed_memory(member, board().entry(member).input, bytes);
}

std::byte* EntryBarrier::output(int member, std::size_t bytes) const {
  return exposed_memory(member, board().entry(member).output, bytes);
}

}  // namespace farandole
