#include "output/line_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <string>
#include <utility>

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

LineOrigin origin() {
  return {.rank = 12,
          .local_rank = 3,
          .host = "fox",
          .pid = 4711,
          .stream = "stderr",
          .time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'042))};
}

std::string text(std::string_view pattern) {
  const auto prefix = LinePrefix::parse(pattern);
  return prefix.ok() ? prefix->text(origin()) : "rejected: " + prefix.status().message();
}

TEST(LinePrefix, IsTheRankByDefault) { EXPECT_EQ(LinePrefix().text(origin()), "[12] "); }

TEST(LinePrefix, FillsInTheFields) {
  EXPECT_EQ(text("[{rank}] "), "[12] ");
  EXPECT_EQ(text("{host}/{local_rank} {pid} {stream}: "), "fox/3 4711 stderr: ");
  EXPECT_EQ(text("{rank}{rank}"), "1212");
  EXPECT_EQ(text(""), "");
}

TEST(LinePrefix, ShowsTheLocalTime) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(text("{time} "), "1970-01-01 00:00:01.042 ");
}

TEST(LinePrefix, DoubleBracesAreOneBrace) {
  EXPECT_EQ(text("{{{rank}}}"), "{12}");
  EXPECT_EQ(text("{{rank}}"), "{rank}");
}

TEST(LinePrefix, RejectsUnknownFields) {
  for (const std::string_view pattern : {"{rnk}", "{}", "{ rank}", "{rank{}", "{Rank}"})
    EXPECT_THAT(text(pattern), MatchesRegex("rejected: there is no field .*; the fields are "
                                            "\\{rank\\}, \\{local_rank\\}, \\{host\\}, \\{pid\\}, "
                                            "\\{stream\\}, \\{time\\}"))
        << pattern;
}

TEST(LinePrefix, RejectsSingleBraces) {
  EXPECT_THAT(text("{rank"), HasSubstr("rejected: a single `{` stands alone"));
  EXPECT_THAT(text("{{{"), HasSubstr("rejected: a single `{` stands alone"));
  EXPECT_THAT(text("rank}"), HasSubstr("rejected: a single `}` stands alone"));
  EXPECT_THAT(text("{rank}}"), HasSubstr("rejected: a single `}` stands alone"));
}

TEST(LinePrefix, RejectsControlCharactersExceptTabs) {
  EXPECT_THAT(text("a\nb"), HasSubstr("rejected: it may not contain line ends"));
  EXPECT_THAT(text("\x1b[31m"), HasSubstr("rejected: it may not contain line ends"));
  EXPECT_EQ(text("{rank}\t"), "12\t");
}

TEST(LinePrefix, RejectsDirectionMarksAndInvalidUtf8) {
  for (const std::string_view pattern :
       {"\u202e{rank} ", "{rank}\u2066", "\u009b2J", "\x7f", "\xff"})
    EXPECT_THAT(text(pattern), HasSubstr("rejected: it may not contain line ends"));
}

TEST(LinePrefix, CountsTerminalColumns) {
  EXPECT_EQ(LinePrefix::parse("数据 {rank} ").value().columns(origin()), 8);
  EXPECT_EQ(LinePrefix::parse("e\u0301 {rank}").value().columns(origin()), 4);
  EXPECT_EQ(LinePrefix::parse("→ {rank} ").value().columns(origin()), 5);
  EXPECT_EQ(LinePrefix::parse("").value().columns(origin()), 0);
}

}  // namespace
}  // namespace farandole
