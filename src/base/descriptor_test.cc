#include "base/descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

TEST(Descriptor, is_empty_at_first) {
  const Descriptor descriptor;
  EXPECT_FALSE(descriptor.valid());
  EXPECT_EQ(descriptor.get(), -1);
}

TEST(Descriptor, is_closed_by_the_destructor) {
  int number = -1;
  {
    const Descriptor descriptor(open_null());
    number = descriptor.get();
    ASSERT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(Descriptor, move_assignment_closes_the_previous_descriptor) {
  Descriptor first(open_null());
  Descriptor second(open_null());
  const int kept = first.get();
  const int dropped = second.get();
  second = std::move(first);
  EXPECT_EQ(second.get(), kept);
  EXPECT_TRUE(is_open(kept));
  EXPECT_FALSE(is_open(dropped));

  Descriptor third(std::move(second));
  EXPECT_EQ(third.get(), kept);
  EXPECT_TRUE(is_open(kept));
}

TEST(Descriptor, release_returns_the_number_without_closing_it) {
  Descriptor descriptor(open_null());
  Descriptor owner(descriptor.release());
  EXPECT_FALSE(descriptor.valid());
  EXPECT_TRUE(is_open(owner.get()));
}

TEST(Descriptor, reset_closes_once) {
  Descriptor descriptor(open_null());
  const int number = descriptor.get();
  descriptor.reset();
  EXPECT_FALSE(is_open(number));
  descriptor.reset();
  EXPECT_FALSE(descriptor.valid());
}

TEST(Descriptor, CanBeMovedBeyondTheStandardDescriptors) {
  const int kept = ::dup(STDIN_FILENO);
  ASSERT_GT(kept, STDERR_FILENO);
  ::close(STDIN_FILENO);
  const auto moved = Descriptor::above_standard_streams(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_GT(moved.get(), STDERR_FILENO);
  EXPECT_EQ(::fcntl(moved.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_LT(::fcntl(STDIN_FILENO, F_GETFD), 0);
  ASSERT_EQ(::dup2(kept, STDIN_FILENO), STDIN_FILENO);
  ::close(kept);
  EXPECT_FALSE(Descriptor::above_standard_streams(-1).valid());
}

}  // namespace
}  // namespace farandole
