#include "network/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace farandole {
namespace {

using ::testing::HasSubstr;

FrameHeader header_with_all_fields() {
  return {.type = FrameType::kData,
          .epoch = 0x1122334455667788,
          .group = 0x01020304,
          .generation = 5,
          .plan = 6,
          .step = 7,
          .sequence = 0xfedcba9876543210,
          .length = 64U << 20U};
}

std::string error_after_change(std::size_t offset, int value) {
  FrameHeaderBytes bytes = encode_frame_header(header_with_all_fields());
  bytes[offset] = static_cast<std::byte>(value);
  const auto parsed_header = parse_frame_header(bytes);
  EXPECT_EQ(parsed_header.status().code(), StatusCode::kRebuildGroup);
  return parsed_header.status().message();
}

TEST(Frame, KeepsAllFields) {
  const auto parsed_header = parse_frame_header(encode_frame_header(header_with_all_fields()));
  ASSERT_TRUE(parsed_header.ok()) << parsed_header.status().message();
  EXPECT_EQ(*parsed_header, header_with_all_fields());
}

TEST(Frame, HasTheDocumentedBytes) {
  const FrameHeaderBytes bytes = encode_frame_header(header_with_all_fields());
  EXPECT_EQ(std::memcmp(bytes.data(), "FARN\1\3\0\0", 8), 0);
  EXPECT_EQ(bytes[8], std::byte{0x88});   // epoch
  EXPECT_EQ(bytes[16], std::byte{0x04});  // group
  EXPECT_EQ(bytes[20], std::byte{5});     // generation
  EXPECT_EQ(bytes[24], std::byte{6});     // plan
  EXPECT_EQ(bytes[28], std::byte{7});     // step
  EXPECT_EQ(bytes[32], std::byte{0x10});  // sequence
  EXPECT_EQ(bytes[43], std::byte{0x04});  // length
}

TEST(Frame, SaysWhichFieldIsWrong) {
  EXPECT_THAT(error_after_change(0, 'X'), HasSubstr("it begins with 0x4e524158"));
  EXPECT_THAT(error_after_change(4, 9), HasSubstr("its version is 9, and ours is 1"));
  EXPECT_THAT(error_after_change(5, 0), HasSubstr("its type is 0"));
  EXPECT_THAT(error_after_change(5, 200), HasSubstr("its type is 200"));
  EXPECT_THAT(error_after_change(7, 1), HasSubstr("its flags are 0x0100"));
  EXPECT_THAT(error_after_change(40, 1),
              HasSubstr("its payload has 67108865 bytes; the limit for type 3 is 67108864"));
  EXPECT_THAT(error_after_change(43, 0xff), HasSubstr("its payload has 4278190080 bytes"));
  EXPECT_THAT(error_after_change(5, 1), HasSubstr("the limit for type 1 is 65536"));
}

TEST(Frame, HasALimitForEveryType) {
  for (int type = 0; type < 256; ++type)
    EXPECT_EQ(payload_bytes_max(static_cast<FrameType>(type)).has_value(), type >= 1 && type <= 8)
        << type;
}

TEST(Frame, AcceptsOnlyBytesThatEncodingCanProduce) {
  std::mt19937 random(1);
  const FrameHeaderBytes valid_header = encode_frame_header(header_with_all_fields());
  for (int i = 0; i < 20'000; ++i) {
    FrameHeaderBytes bytes = valid_header;
    for (auto changes = random() % 3; changes < 3; ++changes)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto parsed_header = parse_frame_header(bytes);
    if (!parsed_header.ok()) continue;
    EXPECT_EQ(encode_frame_header(*parsed_header), bytes);
  }
}

TEST(Frame, IsCollectedFromPiecesOfEverySize) {
  const FrameHeaderBytes bytes = encode_frame_header(header_with_all_fields());
  FrameHeaderReader reader;  // one reader reads all the headers of a connection
  for (std::size_t first_piece_bytes = 0; first_piece_bytes <= bytes.size(); ++first_piece_bytes) {
    for (const auto& [from, to] :
         {std::pair(std::size_t{0}, first_piece_bytes), {first_piece_bytes, bytes.size()}}) {
      ASSERT_GE(reader.space().size(), to - from);
      std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                bytes.begin() + static_cast<std::ptrdiff_t>(to), reader.space().begin());
      EXPECT_FALSE(reader.complete());
      reader.mark_filled(to - from);
      if (first_piece_bytes == bytes.size()) break;
    }
    ASSERT_TRUE(reader.complete());
    EXPECT_TRUE(reader.space().empty());
    const auto parsed_header = reader.take();
    ASSERT_TRUE(parsed_header.ok());
    EXPECT_EQ(*parsed_header, header_with_all_fields());
  }
}

TEST(FrameDeathTest, AnOverlongPayloadIsABugOfTheSender) {
  FrameHeader header = header_with_all_fields();
  ++header.length;
  EXPECT_DEATH(encode_frame_header(header), "rejects a longer payload");
  FrameHeaderReader reader;
  EXPECT_DEATH(reader.mark_filled(kFrameHeaderBytes + 1), "than there was space for");
  EXPECT_DEATH((void)reader.take(), "only a complete header");
}

}  // namespace
}  // namespace farandole
