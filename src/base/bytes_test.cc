#include "base/bytes.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

enum class Colour : std::uint8_t { kRed = 3 };

Bytes sample_message() {
  ByteWriter writer;
  writer.put(std::uint32_t{0x01020304});
  writer.put(Colour::kRed);
  writer.put(std::int64_t{-5});
  writer.put_text("grad/fc1");
  return writer.take();
}

TEST(Bytes, read_gives_what_was_put) {
  const Bytes bytes = sample_message();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint32_t>(), 0x01020304U);
  EXPECT_EQ(reader.get<Colour>(), Colour::kRed);
  EXPECT_EQ(reader.get<std::int64_t>(), -5);
  EXPECT_EQ(reader.get_text(), "grad/fc1");
  EXPECT_TRUE(reader.ok());
  EXPECT_TRUE(reader.at_end());
}

TEST(Bytes, are_little_endian) {
  EXPECT_EQ(sample_message()[0], std::byte{4});
  EXPECT_EQ(sample_message()[3], std::byte{1});
}

TEST(Bytes, every_shorter_message_turns_the_reader_bad) {
  const Bytes bytes = sample_message();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ByteReader reader({bytes.data(), length});
    reader.get<std::uint32_t>();
    reader.get<Colour>();
    reader.get<std::int64_t>();
    reader.get_text();
    EXPECT_FALSE(reader.ok()) << length;
  }
}

TEST(Bytes, an_absurd_length_is_rejected_and_the_reader_stays_bad) {
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
