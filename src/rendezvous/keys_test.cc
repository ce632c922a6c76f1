#include "rendezvous/keys.h"

#include <gtest/gtest.h>

namespace farandole::keys {
namespace {

TEST(MemberRecord, IsDecodedAsItWasEncoded) {
  MemberRecord record{.pid = 712,
                      .host_token = "1f",
                      .host_name = "fox",
                      .addresses = {"10.0.0.1:4711", "[fe80::1]:4711"},
                      .cores = "0-3,8",
                      .size = 4,
                      .settings = {{"ONE", "100"}, {"TWO", ""}},
                      .groups = {{0, 1}, {1, 2, 3}}};
  const auto decoded = MemberRecord::decode(record.encode());
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->pid, 712);
  EXPECT_EQ(decoded->host_token, "1f");
  EXPECT_EQ(decoded->host_name, "fox");
  EXPECT_EQ(decoded->addresses, record.addresses);
  EXPECT_EQ(decoded->cores, "0-3,8");
  EXPECT_EQ(decoded->size, 4);
  EXPECT_EQ(decoded->settings, record.settings);
  EXPECT_EQ(decoded->groups, record.groups);
}

TEST(MemberRecord, RejectsEveryTruncationAndExcess) {
  const MemberRecord record{.pid = 1,
                            .host_token = "1f",
                            .host_name = "fox",
                            .addresses = {"10.0.0.1:4711"},
                            .cores = "1",
                            .size = 2,
                            .settings = {{"ONE", "1"}},
                            .groups = {{0, 1}}};
  Bytes bytes = record.encode();
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(MemberRecord::decode(std::span(bytes).first(length)).ok()) << length;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(MemberRecord::decode(bytes).ok());
}

TEST(ProcessRecord, IsDecodedAsItWasEncodedAndOnlyIfComplete) {
  Bytes bytes = ProcessRecord{712, "1f", "fox"}.encode();
  const auto decoded = ProcessRecord::decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->pid, 712);
  EXPECT_EQ(decoded->host_token, "1f");
  EXPECT_EQ(decoded->host_name, "fox");
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(ProcessRecord::decode(std::span(bytes).first(length)).ok()) << length;
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(ProcessRecord::decode(bytes).ok());
}

TEST(RankRequest, IsDecodedAsItWasEncodedAndOnlyIfComplete) {
  const Bytes bytes = RankRequest{7, 5, true}.encode();
  const auto decoded = RankRequest::decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->left_epoch, 7);
  EXPECT_EQ(decoded->state_epoch, 5);
  EXPECT_TRUE(decoded->knows_state);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(RankRequest::decode(std::span(bytes).first(length)).ok()) << length;
  for (const RankRequest& wrong : {RankRequest{-1, 0}, RankRequest{std::int64_t{1} << 40, 0},
                                   RankRequest{3, -1}, RankRequest{3, 4}})
    EXPECT_FALSE(RankRequest::decode(wrong.encode()).ok());
}

TEST(RankRecord, IsDecodedAsItWasEncodedAndOnlyIfComplete) {
  const Bytes bytes = RankRecord{7, 2, 3, true}.encode();
  const auto decoded = RankRecord::decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->epoch, 7);
  EXPECT_EQ(decoded->rank, 2);
  EXPECT_EQ(decoded->size, 3);
  EXPECT_TRUE(decoded->has_state);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(RankRecord::decode(std::span(bytes).first(length)).ok()) << length;
}

}  // namespace
}  // namespace farandole::keys
