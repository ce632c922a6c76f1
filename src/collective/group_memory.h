// GroupMemory: the layout of the shared segment of a group, or of its members on one host. The
// segment contains the costs, the notice that the group has ended on another host, the count of
// messages to the leader, the flag board, two message rings (to the leader and back) for every
// other member, and the members' staging memory. The leader is the lowest member on the host; in a
// group on one host, it is the coordinator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "collective/group.h"
#include "transport/shm/flag_board.h"
#include "transport/shm/message_ring.h"

namespace farandole {

class GroupMemory {
 public:
  static std::size_t bytes_needed(int members) {
    return staging_begin(members) + static_cast<std::size_t>(members) * kStagingBytes;
  }

  GroupMemory(std::byte* memory, int members) : memory_(memory), members_(members) {}

  // Says that the group has ended on another host. The leader writes all fields once, and `is_set`
  // last.
  struct alignas(kFlagLineBytes) EndOnAnotherHost {
    HardwareAtomics::Atomic<std::uint32_t> is_set;
    std::int32_t rank;  // the rank that has left
    std::uint32_t reason_bytes;
    std::array<char, kLeaveReasonBytesMax> reason;
  };

  // Written once, before another member sees the segment.
  Costs& costs() const { return *reinterpret_cast<Costs*>(memory_); }
  EndOnAnotherHost& end_on_other_host() const {
    return *reinterpret_cast<EndOnAnotherHost*>(memory_ + kCostsBytes);
  }
  MessageRing::Counter* sent_to_leader() const {
    return reinterpret_cast<MessageRing::Counter*>(memory_ + kCounterBegin);
  }
  std::byte* board() const { return memory_ + kBoardBegin; }
  // The rings exist for members 1 … members − 1; member 0 is the leader.
  std::byte* ring_to_leader(int member) const { return ring(2 * (member - 1)); }
  std::byte* ring_from_leader(int member) const { return ring(2 * (member - 1) + 1); }

  std::byte* staging(int member) const {
    return memory_ + staging_begin(members_) + static_cast<std::size_t>(member) * kStagingBytes;
  }

 private:
  static constexpr std::size_t kCostsBytes = kFlagLineBytes;
  static_assert(sizeof(Costs) <= kCostsBytes);
  static constexpr std::size_t kCounterBegin = kCostsBytes + sizeof(EndOnAnotherHost);
  static constexpr std::size_t kBoardBegin = kCounterBegin + sizeof(MessageRing::Counter);
  static_assert(kStagingBytes % kHugePageBytes == 0);

  static std::size_t rings_begin(int members) {
    return kBoardBegin + FlagBoard::bytes_needed(members);
  }
  // The staging memory begins at a huge page, so that the kernel can use huge pages for it.
  static std::size_t staging_begin(int members) {
    const std::size_t end = rings_begin(members) +
                            2 * static_cast<std::size_t>(members - 1) * MessageRing::bytes_needed();
    return (end + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  }
  std::byte* ring(int index) const {
    return memory_ + rings_begin(members_) +
           static_cast<std::size_t>(index) * MessageRing::bytes_needed();
  }

  std::byte* memory_;
  int members_;
};

}  // namespace farandole
