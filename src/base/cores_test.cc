#include "base/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <vector>

namespace farandole {
namespace {

using ::testing::ElementsAre;

TEST(Cores, ReadsCpuQuotas) {
  EXPECT_EQ(cores_in_cpu_max("max 100000\n"), std::nullopt);
  EXPECT_EQ(cores_in_cpu_max("-1\n 100000\n"), std::nullopt);
  EXPECT_EQ(cores_in_cpu_max("400000 100000"), std::optional(4));
  EXPECT_EQ(cores_in_cpu_max("150000 100000"), std::optional(1));
  EXPECT_EQ(cores_in_cpu_max("50000 100000"), std::optional(1));
  EXPECT_EQ(cores_in_cpu_max(""), std::nullopt);
  EXPECT_GE(usable_cores(), 1);
}

TEST(Cores, CountsOnlyCoresOfTheAffinityMask) {
  // This runs in a thread of its own, because the affinity mask must not change for other tests.
  std::thread([] {
    cpu_set_t single_core;
    CPU_ZERO(&single_core);
    CPU_SET(::sched_getcpu(), &single_core);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(single_core), &single_core), 0);
    EXPECT_EQ(usable_cores(), 1);
    EXPECT_THAT(usable_hardware_threads(), ElementsAre(::sched_getcpu()));
  }).join();
}

TEST(Cores, AProcessThatHasEndedHasNoHardwareThreads) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_THAT(usable_hardware_threads(child), ElementsAre());
  EXPECT_EQ(bound_hardware_threads(child, ::getpid()), "");
}

TEST(Cores, AProcessIsBoundIfItHasOtherHardwareThreadsThanItsLauncher) {
  EXPECT_EQ(bound_hardware_threads(::getpid(), ::getpid()), "");
  if (usable_hardware_threads().size() < 2) GTEST_SKIP() << "there is one hardware thread only";
  std::thread([] {
    cpu_set_t single_core;
    CPU_ZERO(&single_core);
    CPU_SET(usable_hardware_threads().back(), &single_core);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(single_core), &single_core), 0);
    EXPECT_EQ(bound_hardware_threads(::gettid(), ::getpid()), list_text(usable_hardware_threads()));
  }).join();
}

TEST(Cores, WritesAndReadsLists) {
  EXPECT_EQ(list_text(std::vector{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(list_text({}), "");
  EXPECT_THAT(numbers_in_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(numbers_in_list("5,1-2,1"), ElementsAre(1, 2, 5));
  EXPECT_THAT(numbers_in_list("x,3,-1,7-6,0-2000000000,"), ElementsAre(3));
}

}  // namespace
}  // namespace farandole
