#include "base/thread_setup.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <array>
#include <initializer_list>
#include <string>
#include <thread>

namespace farandole {
namespace {

TEST(OwnThread, HasANameAndBlocksAllSignalsExceptFaults) {
  std::array<char, 16> name{};
  sigset_t blocked;
  std::thread([&] {
    set_up_own_thread("farandole-test");
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  }).join();
  EXPECT_EQ(std::string(name.data()), "farandole-test");
  for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1})
    EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT})
    EXPECT_EQ(sigismember(&blocked, fault), 0) << fault;
}

TEST(TimeSlice, BecomesTheShortestForTheCallingThreadOnly) {
  const std::uint64_t slice_before = time_slice_ns();
  if (slice_before == 0)
    GTEST_SKIP() << "this kernel has no time slices of threads (Linux 6.12 has)";
  std::thread([] {
    for (int repetition = 0; repetition < 2; ++repetition) {
      request_short_time_slices();
      EXPECT_EQ(time_slice_ns(), kShortestTimeSliceNs);
    }
  }).join();
  EXPECT_EQ(time_slice_ns(), slice_before);
}

TEST(TimeSlice, IsUnchangedUnderAnotherSchedulingPolicy) {
  std::thread([] {
    const sched_param priority{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &priority), 0);
    request_short_time_slices();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
    EXPECT_EQ(time_slice_ns(), 0U);
  }).join();
}

}  // namespace
}  // namespace farandole
