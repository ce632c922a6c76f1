#include "rendezvous/launcher_notice.h"

#include <gtest/gtest.h>

namespace farandole {
namespace {

using std::chrono::milliseconds;

TEST(LauncherNotice, IsReadAsItWasWritten) {
  const LauncherNotice end{
      .kind = LauncherNotice::Kind::kEnd, .limit = milliseconds(1500), .why = "it is late"};
  const auto read = LauncherNotice::decode(end.encode());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, LauncherNotice::Kind::kEnd);
  EXPECT_EQ(read->limit, milliseconds(1500));
  EXPECT_EQ(read->why, "it is late");
  const LauncherNotice loss{.kind = LauncherNotice::Kind::kMemberLost, .epoch = 7, .rank = 3};
  const auto lost = LauncherNotice::decode(loss.encode());
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->kind, LauncherNotice::Kind::kMemberLost);
  EXPECT_EQ(lost->epoch, 7);
  EXPECT_EQ(lost->rank, 3);
}

TEST(LauncherNotice, OtherBytesAreNoNotice) {
  const Bytes whole = LauncherNotice{.why = "why"}.encode();
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(LauncherNotice::decode(std::span(whole).first(size))) << size;
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(LauncherNotice::decode(longer));
  Bytes unknown = whole;
  unknown[0] = std::byte{7};
  EXPECT_FALSE(LauncherNotice::decode(unknown));
  EXPECT_FALSE(LauncherNotice::decode(LauncherNotice{.limit = milliseconds(-1)}.encode()));
  EXPECT_FALSE(LauncherNotice::decode(LauncherNotice{.rank = -1}.encode()));
}

}  // namespace
}  // namespace farandole
