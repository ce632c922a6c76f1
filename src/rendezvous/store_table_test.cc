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
  ASSERT_TRUE(table.remove("0").ok());
  EXPECT_TRUE(table.set("one more", {}).ok());
}

TEST(StoreTable, CountersDoNotOverflow) {
  StoreTable table;
  ASSERT_TRUE(table.add("count", std::numeric_limits<std::int64_t>::max()).ok());
  EXPECT_EQ(table.add("count", 1).status().code(), StatusCode::kFixCall);
  EXPECT_EQ(table.add("count", 0).value(), std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace farandole
