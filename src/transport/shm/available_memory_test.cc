#include "transport/shm/available_memory.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace farandole {
namespace {

TEST(AvailableMemory, IsReadFromTheKernelsText) {
  std::istringstream text(
      "MemTotal:  24 kB\nMemFree:  3 kB\nMemAvailable:   17 kB\nSwapFree: 4 kB\n");
  EXPECT_EQ(available_memory(text), 21u << 10);
}

TEST(AvailableMemory, IsUnlimitedIfTheTextLacksIt) {
  std::istringstream text("MemTotal:  24 kB\nMemAvailable: some");
  EXPECT_EQ(available_memory(text), std::numeric_limits<std::size_t>::max());
}

TEST(AvailableMemory, IsKnownOnThisHost) {
  EXPECT_GT(available_memory(), 0u);
  EXPECT_LT(available_memory(), std::size_t{1} << 60);
}

TEST(AvailableMemory, LimitsWhatCanBeTouched) {
  EXPECT_TRUE(check_memory(5, 5).ok());
  EXPECT_EQ(check_memory(6, 5).message(),
            "6 bytes cannot be allocated: this host has 5 bytes of free memory (use smaller "
            "tensors, or fewer workers on this host)");
}

}  // namespace
}  // namespace farandole
