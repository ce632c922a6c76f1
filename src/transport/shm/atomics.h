// The atomic operations that the shared-memory protocol is written in. The protocol's classes take
// them as a template parameter, so that the model explorer runs the shipped code on its own memory.
// Shared-futex words work between processes; std::atomic::wait does not (its futexes are private).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace farandole {

struct HardwareAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

  // Sleeps while `word` holds `expected`, at most `limit`; may return early. Between processes.
  static void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration limit);
  // Wakes every sleeper of `word`.
  static void futex_wake(std::atomic<std::uint32_t>& word);
};

}  // namespace farandole
