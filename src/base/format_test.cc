#include "base/format.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

TEST(Format, PutsValuesIntoText) {
  const std::string name = "grad";
  EXPECT_EQ(format_text("rank {1} sends `{0}`: {2:.2f} of {3:>4} bytes", name, 3, 0.5, 12),
            "rank 3 sends `grad`: 0.50 of   12 bytes");
  EXPECT_EQ(format_text("{{}}"), "{}");
}

TEST(Format, JoinsValues) {
  EXPECT_EQ(join_text(std::vector<int>{}, ", "), "");
  EXPECT_EQ(join_text(std::vector{7}, ", "), "7");
  EXPECT_EQ(join_text(std::vector<std::string>{"", "b", ""}, "; "), "; b; ");
}

}  // namespace
}  // namespace farandole
