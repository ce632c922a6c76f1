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

// Copies the payloads, because a payload is valid only until the next push().
struct CopiedFrame {
  Kind kind;
  std::uint32_t stream;
  std::uint32_t count;
  std::string payload;
  friend bool operator==(const CopiedFrame&, const CopiedFrame&) = default;
};

std::vector<CopiedFrame> read_in_pieces(const std::string& bytes, std::size_t piece_bytes) {
  RelayFrameReader reader;
  std::vector<CopiedFrame> frames;
  for (std::size_t position = 0; position < bytes.size(); position += piece_bytes) {
    reader.push(std::string_view(bytes).substr(position, piece_bytes));
    for (auto frame = reader.next(); frame.ok() && *frame; frame = reader.next())
      frames.push_back(
          {(*frame)->kind, (*frame)->stream, (*frame)->count, std::string((*frame)->payload)});
  }
  return frames;
}

TEST(RelayFramesTest, AreDecodedFromPiecesOfAnySize) {
  const std::string bytes = three_frames();
  EXPECT_EQ(bytes.size(), 3 * kRelayHeaderBytes + 4);
  const std::vector<CopiedFrame> expected{{Kind::kData, 7, 4, std::string("a\0b\n", 4)},
                                          {Kind::kEnd, 0xFFFFFFFF, 0, ""},
                                          {Kind::kCredit, 8, 0x10203, ""}};
  for (std::size_t piece_bytes = 1; piece_bytes <= bytes.size(); ++piece_bytes)
    EXPECT_EQ(read_in_pieces(bytes, piece_bytes), expected) << "pieces of " << piece_bytes;
}

TEST(RelayFramesTest, OtherBytesAreRejectedAndShown) {
  RelayFrameReader reader;
  reader.push("welcome\tto this host\n");
  const auto frame = reader.next();
  ASSERT_FALSE(frame.ok());
  EXPECT_NE(frame.status().message().find("\"welcome"), std::string::npos);
  EXPECT_EQ(frame.status().message().find('\t'), std::string::npos);
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
