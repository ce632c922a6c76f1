#include "base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <optional>
#include <thread>

namespace farandole {
namespace {

TEST(Cores, ReadsQuotas) {
  EXPECT_EQ(cores_in_cpu_max("max 100000\n"), std::nullopt);
  EXPECT_EQ(cores_in_cpu_max("-1\n 100000\n"), std::nullopt);
  EXPECT_EQ(cores_in_cpu_max("400000 100000"), std::optional(4));
  EXPECT_EQ(cores_in_cpu_max("150000 100000"), std::optional(1));
  EXPECT_EQ(cores_in_cpu_max("50000 100000"), std::optional(1));
  EXPECT_EQ(cores_in_cpu_max(""), std::nullopt);
  EXPECT_GE(usable_cores(), 1);
}

TEST(Cores, CountsOnlyCoresOfTheAffinityMask) {
  // The affinity belongs to this thread and ends with it.
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  }).join();
}

}  // namespace
}  // namespace farandole
