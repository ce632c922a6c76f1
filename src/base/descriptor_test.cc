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
  const int kept_number = first.get();
  const int dropped_number = second.get();
  second = std::move(first);
  EXPECT_EQ(second.get(), kept_number);
  EXPECT_TRUE(is_open(kept_number));
  EXPECT_FALSE(is_open(dropped_number));

  Descriptor third(std::move(second));
  EXPECT_EQ(third.get(), kept_number);
  EXPECT_TRUE(is_open(kept_number));
}

TEST(Descriptor, release_returns_the_number_without_closing_it) {
  Descriptor descriptor(open_null());
  Descriptor new_owner(descriptor.release());
  EXPECT_FALSE(descriptor.valid());
  EXPECT_TRUE(is_open(new_owner.get()));
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
  const int kept_number = ::dup(STDIN_FILENO);
  ASSERT_GT(kept_number, STDERR_FILENO);
  ::close(STDIN_FILENO);
  const auto moved_descriptor =
      Descriptor::above_standard_streams(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_GT(moved_descriptor.get(), STDERR_FILENO);
  EXPECT_EQ(::fcntl(moved_descriptor.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_LT(::fcntl(STDIN_FILENO, F_GETFD), 0);
  ASSERT_EQ(::dup2(kept_number, STDIN_FILENO), STDIN_FILENO);
  ::close(kept_number);
  EXPECT_FALSE(Descriptor::above_standard_streams(-1).valid());
}

}  // namespace
}  // namespace farandole
