#include "coordination/name_table.h"

#include <gtest/gtest.h>

#include <string>

#include "coordination/signatures_in_test.h"

namespace farandole {
namespace {

TEST(NameTable, FindsSignaturesByIdAndIdsByDigest) {
  NameTable names;
  names.define(7, named("a"));
  EXPECT_EQ(names.id_of(digest_of(named("a"))), 7U);
  ASSERT_NE(names.find(7), nullptr);
  EXPECT_EQ(names.find(7)->signature, named("a"));
  EXPECT_EQ(names.find(8), nullptr);
  EXPECT_EQ(names.id_of(digest_of(named("b"))), 0U);

  auto wider = named("a");
  wider.dimensions = {1};
  EXPECT_EQ(names.id_of(digest_of(wider)), 0U);
  names.define(8, wider);
  EXPECT_EQ(names.id_of(digest_of(wider)), 8U);
  EXPECT_EQ(names.id_of(digest_of(named("a"))), 7U);
}

TEST(NameTable, FindsTheLeastRecentlyUsedId) {
  NameTable names;
  for (std::uint32_t id = 1; id <= 3; ++id) names.define(id, named(std::to_string(id)));
  EXPECT_EQ(names.least_recent_id(), 1U);
  names.touch(1);
  EXPECT_EQ(names.least_recent_id(), 2U);
  names.forget(2);
  EXPECT_EQ(names.size(), 2U);
  EXPECT_EQ(names.find(2), nullptr);
  EXPECT_EQ(names.id_of(digest_of(named("2"))), 0U);
  EXPECT_EQ(names.least_recent_id(), 3U);
  names.touch(3);
  EXPECT_EQ(names.least_recent_id(), 1U);
}

TEST(NameTable, SignaturesStayInPlaceWhenTheTableGrows) {
  NameTable names;
  const auto& first = names.define(1, named("first"));
  for (std::uint32_t id = 2; id < 5000; ++id) names.define(id, named(std::to_string(id)));
  EXPECT_EQ(first.signature.name, "first");
  EXPECT_EQ(names.find(1), &first);
}

using NameTableDeathTest = testing::Test;

TEST(NameTableDeathTest, MisuseAborts) {
  NameTable names;
  names.define(1, named("a"));
  EXPECT_DEATH(names.define(2, named("a")), "one id at a time");
  EXPECT_DEATH(names.define(1, named("b")), "stands for one signature");
  EXPECT_DEATH(names.forget(3), "can be forgotten");
}

}  // namespace
}  // namespace farandole
