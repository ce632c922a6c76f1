#include "rendezvous/keys.h"

#include <gtest/gtest.h>

namespace farandole::keys {
namespace {

TEST(MemberRecord, IsDecodedAsItWasEncoded) {
  MemberRecord record{.pid = 712,
                      .size = 4,
                      .settings = {{"ONE", "100"}, {"TWO", ""}},
                      .groups = {{0, 1}, {1, 2, 3}}};
  const auto decoded = MemberRecord::decode(record.encode());
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->pid, 712);
  EXPECT_EQ(decoded->size, 4);
  EXPECT_EQ(decoded->settings, record.settings);
  EXPECT_EQ(decoded->groups, record.groups);
}

TEST(MemberRecord, RejectsEveryTruncationAndExcess) {
  const MemberRecord record{.pid = 1, .size = 2, .settings = {{"ONE", "1"}}, .groups = {{0, 1}}};
  Bytes bytes = record.encode();
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(MemberRecord::decode(std::span(bytes).first(length)).ok()) << length;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(MemberRecord::decode(bytes).ok());
}

}  // namespace
}  // namespace farandole::keys
