#include "rendezvous/store_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace farandole {
namespace {

TEST(StoreTable, IsBounded) {
  StoreTable table;
  for (std::size_t i = 0; i < kStoreKeysMax; ++i) ASSERT_TRUE(table.add(std::to_string(i), 1).ok());
  EXPECT_EQ(table.add("one more", 1).status().code(), StatusCode::kFixCall);
  EXPECT_EQ(table.set("one more", {}).code(), StatusCode::kFixCall);
  EXPECT_TRUE(table.add("0", 1).ok());
  ASSERT_TRUE(table.remove_all({"0"}).ok());
  EXPECT_TRUE(table.set("one more", {}).ok());
}

TEST(StoreTable, AWaitIsOverWhenAllItsKeysExistAtTheSameTime) {
  StoreTable table;
  StoreWait wait{{"a", "b"}, "end"};
  EXPECT_FALSE(table.is_over(wait));
  EXPECT_TRUE(wait.awaits("a"));
  EXPECT_TRUE(wait.awaits("end"));
  EXPECT_FALSE(wait.awaits("b")) << "without `a`, `b` is of no use";
  ASSERT_TRUE(table.set("a", {}).ok());
  EXPECT_FALSE(table.is_over(wait));
  EXPECT_TRUE(wait.awaits("b"));
  ASSERT_TRUE(table.remove_all({"a"}).ok());
  ASSERT_TRUE(table.set("b", {}).ok());
  EXPECT_FALSE(table.is_over(wait));
  EXPECT_TRUE(wait.awaits("a"));
  ASSERT_TRUE(table.set("a", {}).ok());
  EXPECT_TRUE(table.is_over(wait));
}

TEST(StoreTable, AWaitIsOverWithAnErrorOrTheKeyThatEndsIt) {
  StoreTable table;
  ASSERT_TRUE(table.add("count", 1).ok());
  StoreWait wait_for_counter{{"count"}, ""};
  EXPECT_TRUE(table.is_over(wait_for_counter));
  EXPECT_EQ(table.find("count").status().code(), StatusCode::kFixCall);
  StoreWait ended_wait{{"a"}, "count"};
  EXPECT_TRUE(table.is_over(ended_wait));
}

TEST(StoreTable, CountersDoNotOverflow) {
  StoreTable table;
  ASSERT_TRUE(table.add("count", std::numeric_limits<std::int64_t>::max()).ok());
  EXPECT_EQ(table.add("count", 1).status().code(), StatusCode::kFixCall);
  EXPECT_EQ(table.add("count", 0).value(), std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace farandole
