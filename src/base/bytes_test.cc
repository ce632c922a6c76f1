#include "base/bytes.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

enum class Color : std::uint8_t { kRed = 3 };

Bytes sample_message() {
  ByteWriter writer;
  writer.put(std::uint32_t{0x01020304});
  writer.put(Color::kRed);
  writer.put(std::int64_t{-5});
  writer.put_text("grad/fc1");
  return writer.take();
}

TEST(Bytes, reading_returns_the_written_values) {
  const Bytes bytes = sample_message();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint32_t>(), 0x01020304U);
  EXPECT_EQ(reader.get<Color>(), Color::kRed);
  EXPECT_EQ(reader.get<std::int64_t>(), -5);
  EXPECT_EQ(reader.get_text(), "grad/fc1");
  EXPECT_TRUE(reader.ok());
  EXPECT_TRUE(reader.at_end());
}

TEST(Bytes, are_little_endian) {
  EXPECT_EQ(sample_message()[0], std::byte{4});
  EXPECT_EQ(sample_message()[3], std::byte{1});
}

TEST(Bytes, reading_a_truncated_message_fails) {
  const Bytes bytes = sample_message();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ByteReader reader({bytes.data(), length});
    reader.get<std::uint32_t>();
    reader.get<Color>();
    reader.get<std::int64_t>();
    reader.get_text();
    EXPECT_FALSE(reader.ok()) << length;
  }
}

TEST(Bytes, an_impossible_length_is_rejected_and_later_reads_fail) {
  ByteWriter writer;
  writer.put(std::uint32_t{0xffffffff});
  writer.put(std::uint8_t{7});
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get_text(), "");
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.get<std::uint8_t>(), 0);
  EXPECT_FALSE(reader.ok());
}

TEST(Bytes, an_empty_text_is_not_an_error) {
  ByteWriter writer;
  writer.put_text("");
  EXPECT_EQ(writer.size(), 4U);
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get_text(), "");
  EXPECT_TRUE(reader.ok());
  EXPECT_TRUE(reader.at_end());
}

}  // namespace
}  // namespace farandole
