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

// The time until the deadline, at most one hour, for poll() and epoll_wait(); −1 without a
// deadline.
int poll_timeout_ms(std::optional<TimePoint> deadline);

// Only one thread may use it.
class Poller {
 public:
  enum class Interest { kReading, kWriting };

  // Errors: kStop.
  static Result<Poller> create();

  // Borrows the descriptor until remove(). Returns false if it cannot be watched.
  bool add(int descriptor, Interest interest, std::uint64_t tag);
  void remove(int descriptor);

  // This descriptor can itself be polled: it is readable when a watched descriptor is ready.
  int descriptor() const { return epoll_.get(); }

  // Waits and returns the tags of the ready descriptors. Empty at the deadline or after a signal.
  std::vector<std::uint64_t> wait(std::optional<TimePoint> deadline);

 private:
  explicit Poller(Descriptor epoll) : epoll_(std::move(epoll)) {}
  Descriptor epoll_;
};

}  // namespace farandole
