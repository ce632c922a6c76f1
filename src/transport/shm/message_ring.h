// MessageRing: a bounded queue of messages from one member to another in shared memory; the control
// messages of a group on one host travel here. One sender, one receiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "transport/shm/doorbells.h"

namespace farandole {

// One end of the queue. One thread at a time per end.
template <class Atomics>
class BasicMessageRing {
 public:
  // Both ends map the same bytes_needed() zeroed bytes. `peer` is the world rank at the other end,
  // whose bell is rung after a send and after a receive that makes room.
  static constexpr std::size_t kCapacityBytes = 64 * 1024;
  static std::size_t bytes_needed();
  BasicMessageRing(std::byte* memory, BasicDoorbells<Atomics>& doorbells, int peer);

  // False when there is no room now; try again after the bell rang. At most kCapacityBytes / 2.
  bool try_send(std::span<const std::byte> message);
  // The next message, if there is one.
  std::optional<Bytes> try_receive();
};

using MessageRing = BasicMessageRing<HardwareAtomics>;

}  // namespace farandole
