#include "launcher/line_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

OutputPiece line(std::string text) { return {std::move(text), true}; }
OutputPiece progress(std::string text) { return {std::move(text), false}; }

TEST(LineSplitter, JoinsWhatComesInParts) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("hel"), IsEmpty());
  EXPECT_THAT(splitter.push("lo\nwor"), ElementsAre(line("hello")));
  EXPECT_THAT(splitter.push("ld\n\n"), ElementsAre(line("world"), line("")));
}

TEST(LineSplitter, GivesOutTheLastLineWithoutAnEnd) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("a\nlast words"), ElementsAre(line("a")));
  EXPECT_THAT(splitter.finish(), ElementsAre(line("last words")));
  EXPECT_THAT(splitter.finish(), IsEmpty());
}

TEST(LineSplitter, ShowsProgressThatBeginsWithAReturn) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("\r 10%"), ElementsAre(progress(" 10%")));
  EXPECT_THAT(splitter.push("\r 20%"), ElementsAre(progress(" 20%")));
  EXPECT_THAT(splitter.push("\r100%\n"), ElementsAre(line("100%")));
  EXPECT_THAT(splitter.push("done\n"), ElementsAre(line("done")));
}

TEST(LineSplitter, ShowsProgressThatEndsWithAReturn) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("10%\r"), ElementsAre(progress("10%")));
  EXPECT_THAT(splitter.push("20%\r30%\r"), ElementsAre(progress("20%"), progress("30%")));
  EXPECT_THAT(splitter.push("\n"), ElementsAre(line("30%")));
}

TEST(LineSplitter, ReturnAndFeedAreOneEnd) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("dos\r\nlines\r\n"), ElementsAre(line("dos"), line("lines")));
}

TEST(LineSplitter, ASplitLineEndIsOneEnd) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("dos\r"), ElementsAre(progress("dos")));
  EXPECT_THAT(splitter.push("\n"), ElementsAre(line("dos")));
}

TEST(LineSplitter, CutsEndlessLines) {
  LineSplitter splitter;
  const auto pieces = splitter.push(std::string(2 * kLineBytesMax + 1, 'x'));
  ASSERT_THAT(pieces, SizeIs(2));
  EXPECT_TRUE(pieces[0].finished);
  EXPECT_EQ(splitter.finish()[0].text.size() + pieces[0].text.size() + pieces[1].text.size(),
            2 * kLineBytesMax + 1);
}

TEST(LineSplitter, CutsNoLetterInTwo) {
  LineSplitter splitter;
  std::string text(kLineBytesMax - 1, 'x');
  text += "é";  // its first byte is the last one that fits
  const auto pieces = splitter.push(text);
  ASSERT_THAT(pieces, SizeIs(1));
  EXPECT_EQ(pieces[0].text, std::string(kLineBytesMax - 1, 'x'));
  EXPECT_THAT(splitter.finish(), ElementsAre(line("é")));
}

}  // namespace
}  // namespace farandole
