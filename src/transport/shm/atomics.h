// The atomic operations that the shared-memory protocol is written in. The protocol's classes take
// them as a template parameter, so that the model explorer runs the shipped code on its own memory.
// Shared-futex words work between processes; std::atomic::wait does not (its futexes are private).
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

  // Sleeps while `word` holds `expected`, at most `limit`; may return early. Between processes.
  static void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration limit);
  // Wakes every sleeper of `word`.
  static void futex_wake(std::atomic<std::uint32_t>& word);

  // Plain bytes in shared memory. The caller's later store, or earlier load, of a flag orders them.
  static void write_bytes(std::byte* shared, const std::byte* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(shared, from, bytes);
  }
  static void read_bytes(std::byte* to, const std::byte* shared, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, shared, bytes);
  }
};

}  // namespace farandole
