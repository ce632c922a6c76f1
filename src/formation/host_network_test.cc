#include "formation/host_network.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace farandole {
namespace {

TEST(JobNumber, IsDifferentForEachEngineOfEachJob) {
  std::set<std::uint64_t> numbers;
  for (const char* job : {"1.1", "1.2", "1."})
    for (const char* engine : {"", "a", "b", "1"}) numbers.insert(job_number(job, engine));
  EXPECT_EQ(numbers.size(), 12U);
  EXPECT_EQ(job_number("1.1", "a"), job_number("1.1", "a"));
}

}  // namespace
}  // namespace farandole
