#include "base/try.h"

#include <gtest/gtest.h>

#include <memory>

namespace farandole {
namespace {

Result<std::unique_ptr<int>> half_of(int value) {
  if (value % 2 != 0) return Status::fix_call("odd");
  return std::make_unique<int>(value / 2);
}

Result<int> quarter_of(int value) {
  FARANDOLE_TRY_ASSIGN(const auto half, half_of(value));
  FARANDOLE_TRY_ASSIGN(const auto quarter, half_of(*half));
  return *quarter;
}

Status check_divisible_by_four(int value) {
  FARANDOLE_TRY(quarter_of(value).status());
  return {};
}

TEST(Try, continues_with_the_value) {
  ASSERT_TRUE(quarter_of(12).ok());
  EXPECT_EQ(*quarter_of(12), 3);
  EXPECT_TRUE(check_divisible_by_four(12).ok());
}

TEST(Try, returns_the_first_failure) {
  EXPECT_EQ(quarter_of(3).status(), Status::fix_call("odd"));
  EXPECT_EQ(quarter_of(6).status(), Status::fix_call("odd"));
  EXPECT_EQ(check_divisible_by_four(6), Status::fix_call("odd"));
}

}  // namespace
}  // namespace farandole
