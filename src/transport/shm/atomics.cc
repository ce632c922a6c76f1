#include "transport/shm/atomics.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace farandole {

void HardwareAtomics::futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                                 Duration limit) {
  const auto remaining = std::max(limit, Duration::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(remaining);
  const std::timespec timeout{
      .tv_sec = seconds.count(),
      .tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(remaining - seconds).count()};
  // Ignores the result, because the caller checks its condition again after every return.
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void HardwareAtomics::futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace farandole
