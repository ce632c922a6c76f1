// The atomic operations that the shared-memory protocol uses. The protocol's classes take them as a
// template parameter, so that the model explorer can run the same code on its own memory. The
// futexes here work between processes; std::atomic::wait works only within one process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/clock.h"

namespace farandole {

struct HardwareAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

  // Sleeps while `word` holds `expected`, for at most `limit`. The call may also return without a
  // reason.
  static void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration limit);
  // Wakes all threads that sleep on `word`.
  static void futex_wake(std::atomic<std::uint32_t>& word);

  // Copies plain bytes to or from shared memory. A flag must order the copies: the writer stores
  // the flag after write_bytes(), and the reader loads the flag before read_bytes().
  static void write_bytes(std::byte* shared, const std::byte* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(shared, from, bytes);
  }
  static void read_bytes(std::byte* to, const std::byte* shared, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, shared, bytes);
  }
};

}  // namespace farandole
