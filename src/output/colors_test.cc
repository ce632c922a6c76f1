#include "output/colors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "output/worker_stream.h"

namespace farandole {
namespace {

TEST(Colors, AreOnlyForTerminalsThatShowColors) {
  const WorkerStream terminal = WorkerStream::make_terminal({}).value();
  const WorkerStream pipe = WorkerStream::make_pipe().value();
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "xterm", 1);
  EXPECT_TRUE(can_show_colors(terminal.theirs.get()));
  EXPECT_FALSE(can_show_colors(pipe.theirs.get()));
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(can_show_colors(terminal.theirs.get()));
  ::setenv("TERM", "xterm", 1);
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(can_show_colors(terminal.theirs.get()));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(can_show_colors(terminal.theirs.get()));
  ::unsetenv("NO_COLOR");
}

TEST(Colors, AreResetAfterTheText) {
  EXPECT_EQ(in_color("no", Color::kRed), "\x1b[31mno\x1b[0m");
  EXPECT_EQ(in_color("", Color::kRed), "");
}

TEST(Colors, OfNeighbouringRanksDiffer) {
  for (int rank = 0; rank < 12; ++rank) {
    EXPECT_NE(in_color_of_rank("x", rank), in_color_of_rank("x", rank + 1));
    EXPECT_NE(in_color_of_rank("x", rank), in_color("x", Color::kRed));
  }
}

}  // namespace
}  // namespace farandole
