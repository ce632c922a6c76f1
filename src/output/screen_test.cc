#include "output/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "output/pieces_in_test.h"

namespace farandole {
namespace {

using ::testing::EndsWith;
using ::testing::Not;

TEST(Screen, PrefixesLinesWithTheRank) {
  Screen screen(false);
  EXPECT_EQ(screen.show(0, "[0] ", line("hello")), "[0] hello\n");
  EXPECT_EQ(screen.show(22, "[11] ", line("")), "[11] \n");
  EXPECT_EQ(screen.show_notice("the end"), "farandole: the end\n");
}

TEST(Screen, ProgressInAFileIsEndedBeforeAnotherLine) {
  Screen screen(false);
  EXPECT_EQ(screen.show(0, "[0] ", progress("10%")), "[0] 10%");
  EXPECT_EQ(screen.show(0, "[0] ", progress("20%")), "\r[0] 20%");
  EXPECT_EQ(screen.show(2, "[1] ", line("hello")), "\n[1] hello\n");
  EXPECT_EQ(screen.show(0, "[0] ", progress("30%")), "[0] 30%");
  EXPECT_EQ(screen.show(2, "[1] ", progress("1%")), "\n[1] 1%");
}

TEST(Screen, ProgressOnATerminalStaysBelowOtherLines) {
  Screen screen(true);
  EXPECT_EQ(screen.show(0, "[0] ", progress("10%")), "[0] 10%\x1b[K");
  EXPECT_EQ(screen.show(2, "[1] ", line("hello")), "\r\x1b[K[1] hello\n[0] 10%");
  EXPECT_EQ(screen.show(0, "[0] ", line("done")), "\r\x1b[K[0] done\n");
  EXPECT_EQ(screen.show(2, "[1] ", line("bye")), "[1] bye\n");
}

TEST(Screen, AnotherProgressLineReplacesTheFirstOnATerminal) {
  Screen screen(true);
  screen.show(0, "[0] ", progress("10%"));
  EXPECT_EQ(screen.show(2, "[1] ", progress("1%")), "\r[1] 1%\x1b[K");
}

TEST(Screen, TheLastStateOfAProgressLineIsNotShownTwice) {
  Screen screen(false);
  screen.show(0, "[0] ", progress("100%"));
  EXPECT_EQ(screen.show(0, "[0] ", line("100%")), "\n");
  screen.show(0, "[0] ", progress("99%"));
  EXPECT_EQ(screen.show(0, "[0] ", line("100%")), "\r[0] 100%\n");
}

TEST(Screen, ColorsEndWithTheLineOnATerminal) {
  Screen terminal(true, true);
  EXPECT_THAT(terminal.show(0, "[0] ", line("\x1b[31mred")), EndsWith("\x1b[31mred\x1b[0m\n"));
  EXPECT_THAT(terminal.show(0, "[0] ", line("plain")), Not(EndsWith("\x1b[0m\n")));
  Screen file(false);
  EXPECT_EQ(file.show(0, "[0] ", line("\x1b[31mred")), "[0] \x1b[31mred\n");
}

TEST(Screen, LinesOfTheLauncherAreColoredOnATerminal) {
  Screen terminal(true, true);
  EXPECT_EQ(terminal.show_notice("the end"), "\x1b[1mfarandole: \x1b[0mthe end\n");
  EXPECT_EQ(terminal.show_error("too bad"), "\x1b[31mfarandole: too bad\x1b[0m\n");
  Screen file(false);
  EXPECT_EQ(file.show_error("too bad"), "farandole: too bad\n");
}

TEST(Screen, ClosingEndsAnOpenLine) {
  Screen screen(false);
  EXPECT_EQ(screen.end_progress_line(), "");
  screen.show(0, "[0] ", progress("10%"));
  EXPECT_EQ(screen.end_progress_line(), "\n");
  EXPECT_EQ(screen.end_progress_line(), "");
}

}  // namespace
}  // namespace farandole
