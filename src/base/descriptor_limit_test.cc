#include "base/descriptor_limit.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <vector>

#include "base/descriptor.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

// Restores the limit, because it belongs to the whole process.
class DescriptorLimitTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &original_limit_), 0); }
  void TearDown() override { ::setrlimit(RLIMIT_NOFILE, &original_limit_); }

  static void limit_to(rlim_t number) {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = number;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit original_limit_{};
};

TEST_F(DescriptorLimitTest, StatesTheNeededAndTheOpenNumber) {
  limit_to(32);
  std::vector<Descriptor> taken_descriptors;
  for (;;) {
    Descriptor next_descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!next_descriptor.valid()) break;
    taken_descriptors.push_back(std::move(next_descriptor));
  }
  for (int i = 0; i < 5; ++i) taken_descriptors.pop_back();
  EXPECT_TRUE(check_descriptors("rank 3", 5).ok());
  const Status status = check_descriptors("rank 3", 6);
  EXPECT_EQ(status.code(), StatusCode::kStop);
  EXPECT_EQ(status.message(),
            "rank 3 needs 6 more file descriptors, but has 27 open and a limit of 32; raise "
            "`ulimit -n` to at least 33");
  EXPECT_EQ(descriptor_advice(),
            "27 file descriptors are open, the limit is 32; raise `ulimit -n` to at least 35");
}

TEST_F(DescriptorLimitTest, DescriptorsMayBeOpenBeyondALoweredLimit) {
  const Descriptor descriptor_above_the_limit(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100));
  ASSERT_TRUE(descriptor_above_the_limit.valid());
  limit_to(64);
  EXPECT_TRUE(check_descriptors("rank 0", 8).ok());
  EXPECT_THAT(check_descriptors("rank 0", 64).message(), HasSubstr("a limit of 64"));
}

}  // namespace
}  // namespace farandole
