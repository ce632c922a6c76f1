#include "rendezvous/store_table.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "base/no_descriptors_in_test.h"

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

TEST(StoreTable, AFullProcessGetsNoDuplicates) {
  StoreTable table;
  StoreValue value;
  value.descriptors.emplace_back(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  ASSERT_TRUE(table.set("key", std::move(value)).ok());
  const NoFreeDescriptors full;
  const auto found = table.find("key");
  EXPECT_EQ(found.status().code(), StatusCode::kStop);
  EXPECT_THAT(found.status().message(), ::testing::HasSubstr("cannot duplicate a descriptor"));
}

TEST(StoreTable, CountersDoNotOverflow) {
  StoreTable table;
  ASSERT_TRUE(table.add("count", std::numeric_limits<std::int64_t>::max()).ok());
  EXPECT_EQ(table.add("count", 1).status().code(), StatusCode::kFixCall);
  EXPECT_EQ(table.add("count", 0).value(), std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace farandole
