#include "base/check.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

TEST(Check, says_nothing_when_the_condition_holds) { CHECK(1 + 1 == 2, "arithmetic works"); }

TEST(CheckDeathTest, stops_the_process_and_shows_the_line_the_condition_and_the_reason) {
  const int members = 0;
  EXPECT_DEATH(CHECK(members > 0, "a group has members"),
               "check_test.cc:[0-9]+: `members > 0` does not hold \\(a group has members\\)");
}

}  // namespace
}  // namespace farandole
