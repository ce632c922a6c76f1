#include "base/thread_setup.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>
#include <optional>

namespace farandole {
namespace {

// The first version of sched_setattr(2)'s argument. glibc has neither the function nor the struct.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // the slice, for the fair scheduling policies
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

// Attributes of the calling thread. Empty if its policy is not a fair one.
std::optional<SchedulingAttributes> fair_scheduling_attributes() {
  SchedulingAttributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return std::nullopt;
  const bool is_fair = attributes.policy == SCHED_OTHER || attributes.policy == SCHED_BATCH;
  return is_fair ? std::optional(attributes) : std::nullopt;
}

}  // namespace

void set_up_own_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  sigset_t blocked_signals;
  sigfillset(&blocked_signals);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
    sigdelset(&blocked_signals, fault);
  ::pthread_sigmask(SIG_SETMASK, &blocked_signals, nullptr);
}

void request_short_time_slices() {
  auto attributes = fair_scheduling_attributes();
  if (!attributes || attributes->runtime <= kShortestTimeSliceNs) return;
  attributes->runtime = kShortestTimeSliceNs;
  // A sandbox may forbid the call. In this case, this thread waits longer for a core after it was
  // woken, and nothing else changes.
  ::syscall(SYS_sched_setattr, 0, &*attributes, 0);
}

std::uint64_t time_slice_ns() {
  const auto attributes = fair_scheduling_attributes();
  return attributes ? attributes->runtime : 0;
}

}  // namespace farandole
