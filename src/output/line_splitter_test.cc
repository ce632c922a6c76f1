#include "output/line_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "output/pieces_in_test.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(LineSplitter, JoinsALineThatArrivesInParts) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("hel"), IsEmpty());
  EXPECT_THAT(splitter.push("lo\nwor"), ElementsAre(line("hello")));
  EXPECT_THAT(splitter.push("ld\n\n"), ElementsAre(line("world"), line("")));
}

TEST(LineSplitter, CutsAtTheGivenLimit) {
  LineSplitter splitter(4);
  EXPECT_THAT(splitter.push("hello\n"), ElementsAre(line("hell"), line("o")));
}

TEST(LineSplitter, ReturnsALastLineWithoutALineEnd) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("a\nlast words"), ElementsAre(line("a")));
  EXPECT_THAT(splitter.finish(), ElementsAre(line("last words")));
  EXPECT_THAT(splitter.finish(), IsEmpty());
}

TEST(LineSplitter, ShowsProgressThatBeginsWithACarriageReturn) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("\r 10%"), ElementsAre(progress(" 10%")));
  EXPECT_THAT(splitter.push("\r 20%"), ElementsAre(progress(" 20%")));
  EXPECT_THAT(splitter.push("\r100%\n"), ElementsAre(line("100%")));
  EXPECT_THAT(splitter.push("done\n"), ElementsAre(line("done")));
}

TEST(LineSplitter, ShowsProgressThatEndsWithACarriageReturn) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("10%\r"), ElementsAre(progress("10%")));
  EXPECT_THAT(splitter.push("20%\r30%\r"), ElementsAre(progress("20%"), progress("30%")));
  EXPECT_THAT(splitter.push("\n"), ElementsAre(line("30%")));
}

TEST(LineSplitter, CarriageReturnAndLineFeedAreOneLineEnd) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.push("dos\r\nlines\r\n"), ElementsAre(line("dos"), line("lines")));
}

TEST(LineSplitter, ALineEndInTwoReadsIsOneLineEnd) {
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

// Characters of two to four bytes at the limit of the line length: some or all of their bytes fit.
TEST(LineSplitter, DoesNotCutInsideACharacter) {
  for (const std::string letter : {"é", "数", "😀"}) {
    for (std::size_t fit = 1; fit <= letter.size(); ++fit) {
      LineSplitter splitter;
      const std::string before(kLineBytesMax - fit, 'x');
      EXPECT_THAT(splitter.push(before + letter + "z"), ElementsAre(line(before)));
      EXPECT_THAT(splitter.finish(), ElementsAre(line(letter + "z")));
    }
  }
}

// Bytes that are not UTF-8 must not be lost either.
TEST(LineSplitter, CutsInvalidUtf8WithoutLoss) {
  LineSplitter splitter;
  const std::string bytes(kLineBytesMax, '\x80');
  std::string output;
  for (const auto& piece : splitter.push(bytes)) output += piece.text;
  EXPECT_FALSE(output.empty());
  for (const auto& piece : splitter.finish()) output += piece.text;
  EXPECT_EQ(output, bytes);
}

}  // namespace
}  // namespace farandole
