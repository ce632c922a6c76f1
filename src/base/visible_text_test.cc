#include "base/visible_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace farandole {
namespace {

using ::testing::ElementsAre;

TEST(VisibleText, ControlCharactersAreEscaped) {
  EXPECT_EQ(escape_controls("a\x1b[31mred\r\n"), "a\\x1b[31mred\\x0d\\x0a");
  EXPECT_EQ(escape_controls("\tx"), "    x");
  EXPECT_EQ(escape_controls("\xC2\x9B"
                            "31m"),
            "\\x9b31m");                                    // C1: CSI
  EXPECT_EQ(escape_controls("\xE2\x80\xAEx"), "\\u202ex");  // changes the writing direction
  EXPECT_EQ(escape_controls("Größe … 数"), "Größe … 数");
}

TEST(VisibleText, InvalidUtf8IsShownByteByByte) {
  EXPECT_EQ(escape_controls("\xE2\x80"), "\\xe2\\x80");
  EXPECT_EQ(escape_controls("\xC0\xAF"), "\\xc0\\xaf");
  EXPECT_EQ(escape_controls("\xE0\x80\xAF"), "\\xe0\\x80\\xaf");  // an overlong encoding of a slash
  EXPECT_EQ(escape_controls("\xED\xA0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(escape_controls("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(VisibleText, CountsColumns) {
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("äö…"), 3);
  EXPECT_EQ(columns_of("数据"), 4);
  EXPECT_EQ(columns_of("e\xCC\x81"), 1);
}

TEST(VisibleText, CutsWithAnEllipsis) {
  EXPECT_EQ(cut_to("abcdef", 6), "abcdef");
  EXPECT_EQ(cut_to("abcdefg", 6), "abcde…");
  EXPECT_EQ(cut_to("数据数据", 6), "数据…");
}

TEST(VisibleText, WrapsAtSpaces) {
  EXPECT_THAT(wrap("short", 20), ElementsAre("short"));
  EXPECT_THAT(wrap("", 20), ElementsAre(""));
  EXPECT_THAT(wrap("one two three four five six", 20),
              ElementsAre("one two three four", "five six"));
  EXPECT_THAT(wrap("    " + std::string(30, 'x'), 20, 2),
              ElementsAre("    " + std::string(16, 'x'), "      " + std::string(14, 'x')));
  EXPECT_THAT(wrap("exactly twenty wide    ", 20), ElementsAre("exactly twenty wide"));
}

}  // namespace
}  // namespace farandole
