#include "driver/launcher_order.h"

#include <gtest/gtest.h>

#include <random>

namespace farandole {
namespace {

LauncherOrder sample_order() {
  return {.folder = "/home/a b",
          .environment = {"PATH=/bin", "OMP_NUM_THREADS=", std::string("X=a\0b\n", 6)},
          .flags = {"--timeline", "t.json", "-n", "4"},
          .program = {"python", "train.py", ""},
          .has_colors = true,
          .columns = 80,
          .nodes = 3,
          .node = 2,
          .host = "owl",
          .first_host = "hen",
          .addresses = {"10.0.0.1:4711", "[fd00::1]:5"},
          .replaces = Replacement{.number = 2, .epoch = 9, .workers = {0, 3}, .nodes = {1}},
          .relayed = RelayedParts{.has_channels = true, .has_copies = true}};
}

std::span<const std::byte> fields_of(const Bytes& bytes) { return std::span(bytes).subspan(4); }

TEST(LauncherOrderTest, DecodingReturnsTheEncodedOrder) {
  const Bytes bytes = encode(sample_order());
  EXPECT_EQ(ByteReader(bytes).get<std::uint32_t>(), bytes.size() - 4);
  EXPECT_EQ(decode_launcher_order(fields_of(bytes)), sample_order());
}

TEST(LauncherOrderTest, InvalidBytesAreRejected) {
  Bytes bytes = encode(sample_order());
  for (std::size_t count = 0; count < bytes.size() - 4; ++count)
    EXPECT_FALSE(decode_launcher_order(fields_of(bytes).first(count)).has_value());
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_launcher_order(fields_of(bytes)).has_value());
  LauncherOrder order = sample_order();
  order.node = 3;
  EXPECT_FALSE(decode_launcher_order(fields_of(encode(order))).has_value());
  order = sample_order();
  order.program.clear();
  EXPECT_FALSE(decode_launcher_order(fields_of(encode(order))).has_value());
}

TEST(LauncherOrderTest, ChangedBytesAreDecodedSafely) {
  std::mt19937 random(1);
  const Bytes bytes = encode(sample_order());
  for (int i = 0; i < 20'000; ++i) {
    Bytes changed_bytes(bytes.begin() + 4, bytes.end());
    for (auto change = random() % 4; change < 4; ++change)
      changed_bytes[random() % changed_bytes.size()] = static_cast<std::byte>(random());
    if (const auto order = decode_launcher_order(changed_bytes)) {
      EXPECT_EQ(decode_launcher_order(fields_of(encode(*order))), order);
    }
  }
}

}  // namespace
}  // namespace farandole
