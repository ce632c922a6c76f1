// GroupMemory: what lies where in a group's segment: the flag board, then two message rings per
// follower (to the coordinator and back).
#pragma once

#include <cstddef>

#include "transport/shm/flag_board.h"
#include "transport/shm/message_ring.h"

namespace farandole {

class GroupMemory {
 public:
  static std::size_t bytes_needed(int members) {
    return FlagBoard::bytes_needed(members) +
           2 * static_cast<std::size_t>(members - 1) * MessageRing::bytes_needed();
  }

  GroupMemory(std::byte* memory, int members) : memory_(memory), members_(members) {}

  std::byte* board() const { return memory_; }
  // Members 1 … members − 1.
  std::byte* ring_to_coordinator(int member) const { return ring(2 * (member - 1)); }
  std::byte* ring_from_coordinator(int member) const { return ring(2 * (member - 1) + 1); }

 private:
  std::byte* ring(int index) const {
    return memory_ + FlagBoard::bytes_needed(members_) +
           static_cast<std::size_t>(index) * MessageRing::bytes_needed();
  }

  std::byte* memory_;
  int members_;
};

}  // namespace farandole
