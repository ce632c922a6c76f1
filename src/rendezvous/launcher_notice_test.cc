#include "rendezvous/launcher_notice.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using std::chrono::milliseconds;

TEST(LauncherNotice, IsReadAsItWasWritten) {
  const LauncherNotice end_notice{
      .kind = LauncherNotice::Kind::kEnd, .limit = milliseconds(1500), .why = "it is late"};
  const auto decoded_end = LauncherNotice::decode(end_notice.encode());
  ASSERT_TRUE(decoded_end);
  EXPECT_EQ(decoded_end->kind, LauncherNotice::Kind::kEnd);
  EXPECT_EQ(decoded_end->limit, milliseconds(1500));
  EXPECT_EQ(decoded_end->why, "it is late");
  const LauncherNotice loss_notice{
      .kind = LauncherNotice::Kind::kMemberLost, .epoch = 7, .rank = 3};
  const auto decoded_loss = LauncherNotice::decode(loss_notice.encode());
  ASSERT_TRUE(decoded_loss);
  EXPECT_EQ(decoded_loss->kind, LauncherNotice::Kind::kMemberLost);
  EXPECT_EQ(decoded_loss->epoch, 7);
  EXPECT_EQ(decoded_loss->rank, 3);
}

TEST(LauncherNotice, OtherBytesAreNoNotice) {
  const Bytes valid_bytes = LauncherNotice{.why = "why"}.encode();
  for (std::size_t size = 0; size < valid_bytes.size(); ++size)
    EXPECT_FALSE(LauncherNotice::decode(std::span(valid_bytes).first(size))) << size;
  Bytes longer_bytes = valid_bytes;
  longer_bytes.push_back(std::byte{0});
  EXPECT_FALSE(LauncherNotice::decode(longer_bytes));
  Bytes unknown_kind = valid_bytes;
  unknown_kind[0] = std::byte{7};
  EXPECT_FALSE(LauncherNotice::decode(unknown_kind));
  EXPECT_FALSE(LauncherNotice::decode(LauncherNotice{.limit = milliseconds(-1)}.encode()));
  EXPECT_FALSE(LauncherNotice::decode(LauncherNotice{.rank = -1}.encode()));
}

}  // namespace
}  // namespace farandole
