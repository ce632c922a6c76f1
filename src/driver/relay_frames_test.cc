#include "driver/relay_frames.h"

#include <gtest/gtest.h>

#include <vector>

namespace farandole {
namespace {

using Kind = RelayFrame::Kind;

std::string three_frames() {
  std::string bytes;
  append_data(bytes, 7, std::string("a\0b\n", 4));
  append_end(bytes, 0xFFFFFFFF);
  append_credit(bytes, 8, 0x10203);
  return bytes;
}

// Copies, because payloads are valid until the next push() only.
struct CopiedFrame {
  Kind kind;
  std::uint32_t stream;
  std::uint32_t count;
  std::string payload;
  friend bool operator==(const CopiedFrame&, const CopiedFrame&) = default;
};

std::vector<CopiedFrame> read_in_pieces(const std::string& bytes, std::size_t piece) {
  RelayFrameReader reader;
  std::vector<CopiedFrame> frames;
  for (std::size_t position = 0; position < bytes.size(); position += piece) {
    reader.push(std::string_view(bytes).substr(position, piece));
    for (auto next = reader.next(); next.ok() && *next; next = reader.next())
      frames.push_back(
          {(*next)->kind, (*next)->stream, (*next)->count, std::string((*next)->payload)});
  }
  return frames;
}

TEST(RelayFramesTest, AreDecodedFromPiecesOfAnySize) {
  const std::string bytes = three_frames();
  EXPECT_EQ(bytes.size(), 3 * kRelayHeaderBytes + 4);
  const std::vector<CopiedFrame> expected{{Kind::kData, 7, 4, std::string("a\0b\n", 4)},
                                          {Kind::kEnd, 0xFFFFFFFF, 0, ""},
                                          {Kind::kCredit, 8, 0x10203, ""}};
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece)
    EXPECT_EQ(read_in_pieces(bytes, piece), expected) << "pieces of " << piece;
}

TEST(RelayFramesTest, OtherBytesAreRejectedAndShown) {
  RelayFrameReader reader;
  reader.push("welcome\tto this host\n");
  const auto next = reader.next();
  ASSERT_FALSE(next.ok());
  EXPECT_NE(next.status().message().find("\"welcome"), std::string::npos);
  EXPECT_EQ(next.status().message().find('\t'), std::string::npos);
}

TEST(RelayFramesTest, ImpossibleCountsAreRejected) {
  std::string too_long;
  append_data(too_long, 1, std::string(kRelayPayloadBytesMax + 1, 'x'));
  std::string empty;
  append_data(empty, 1, "");
  std::string no_credit;
  append_credit(no_credit, 1, 0);
  for (const std::string& bytes : {too_long, empty, no_credit}) {
    RelayFrameReader reader;
    reader.push(bytes);
    EXPECT_FALSE(reader.next().ok());
  }
}

}  // namespace
}  // namespace farandole
