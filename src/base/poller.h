// Poller: reports which of many descriptors are ready, in the order in which they became ready.
// This order tells the launcher which of two workers died first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// Returns the timeout to pass to poll() or epoll_wait(): the time until the deadline, at most one
// hour, or −1 without a deadline.
int poll_timeout_ms(std::optional<TimePoint> deadline);

// Only one thread may use a Poller.
class Poller {
 public:
  enum class Interest { kReading, kWriting };

  // Errors: kStop.
  static Result<Poller> create();

  // Borrows the descriptor until remove(). Returns false if it cannot be watched.
  bool add(int descriptor, Interest interest, std::uint64_t tag);
  void remove(int descriptor);

  // Returns a descriptor that can itself be polled: it is readable when a watched descriptor is
  // ready.
  int descriptor() const { return epoll_.get(); }

  // Waits and returns the tags of the ready descriptors. Returns an empty list at the deadline or
  // after a signal.
  std::vector<std::uint64_t> wait(std::optional<TimePoint> deadline);

 private:
  explicit Poller(Descriptor epoll) : epoll_(std::move(epoll)) {}
  Descriptor epoll_;
};

}  // namespace farandole
