#include "shared_results.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/platform.h"

namespace farandole::bench {
namespace {

constexpr int kPolls = 20'000;  // takes about a millisecond
constexpr int kYields = 16;

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  ::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

void SharedResults::barrier(int ranks, bool has_own_core) {
  const std::uint32_t generation = generation_.load();
  if (arrived_.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks)) {
    arrived_.store(0);
    generation_.store(generation + 1);
    if (sleepers_.load() != 0) futex(generation_, FUTEX_WAKE, INT_MAX);
    return;
  }
  for (int poll = 0; poll < (has_own_core ? kPolls : kYields); ++poll) {
    if (generation_.load() != generation) return;
    if (has_own_core)
      cpu_pause();
    else
      ::sched_yield();
  }
  sleepers_.fetch_add(1);
  while (generation_.load() == generation) futex(generation_, FUTEX_WAIT, generation);
  sleepers_.fetch_sub(1);
}

}  // namespace farandole::bench
