// EventSet: an epoll instance with the sockets of a listener or a dialer. It has one descriptor,
// which its owner can poll together with other descriptors.
#pragma once

#include <cstdint>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

class EventSet {
 public:
  // Errors of all functions: kStop.
  static Result<EventSet> make();

  // Watches the descriptor for bytes to receive and, if `to_send`, for room to send. The descriptor
  // is borrowed. Call remove() before you close it: while a forked child has a copy, the kernel
  // does not remove a closed descriptor, and the set may stay ready for ever.
  Status add(int descriptor, std::uint64_t id, bool to_send);
  Status change(int descriptor, std::uint64_t id, bool to_send);
  void remove(int descriptor);
  // Returns the ids of descriptors that are ready now. Does not block.
  Result<std::vector<std::uint64_t>> ready_ids() const;

  // A borrowed descriptor that is readable if ready_ids() would return an id.
  int descriptor() const { return epoll_.get(); }

 private:
  explicit EventSet(Descriptor epoll) : epoll_(std::move(epoll)) {}
  Status control(int operation, int descriptor, std::uint64_t id, bool to_send);

  Descriptor epoll_;
};

}  // namespace farandole
