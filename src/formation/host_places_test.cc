#include "formation/host_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/keys.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/memory_store.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

TEST(HostPlaces, EachRankCountsTheRanksAtItsPlace) {
  const std::vector<std::string> places{"a", "b", "a", "a"};
  const std::vector<int> expected_counts{3, 1, 3, 3};
  MemoryStore store;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      const auto count = count_ranks_at(places[index], rank, 4, store, long_limit());
      ASSERT_EQ(count.status(), Status());
      EXPECT_EQ(*count, expected_counts[index]);
    });
}

TEST(HostPlaces, NamesTheMissingRanks) {
  MemoryStore store;
  ASSERT_EQ(store.set(keys::place(1), keys::text_value("b")), Status());
  const auto now = std::chrono::steady_clock::now();
  const Status late_status = count_ranks_at("a", 0, 4, store, {now, kNotInterrupted}).status();
  EXPECT_EQ(late_status.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(late_status.message(), HasSubstr("ranks 2, 3 did not come to the rendezvous"));
}

TEST(HostPlaces, EndsIfTheFormationFailsOrIsInterrupted) {
  MemoryStore store;
  ASSERT_EQ(store.set(keys::complete(1), keys::text_value("worker 1 has ended")), Status());
  EXPECT_EQ(count_ranks_at("a", 0, 2, store, long_limit()).status(),
            Status::rebuild_group("worker 1 has ended"));
  MemoryStore second_store;
  const std::function<bool()> interrupted = [] { return true; };
  EXPECT_EQ(
      count_ranks_at("a", 0, 2, second_store,
                     {std::chrono::steady_clock::now() + std::chrono::minutes(1), interrupted})
          .status()
          .code(),
      StatusCode::kRetry);
}

TEST(HostPlaces, TwoProcessesCannotHaveOneRank) {
  MemoryStore store;
  ASSERT_EQ(store.set(keys::place(1), keys::text_value("b")), Status());
  for (const int rank : {1, 0})  // rank 0 would wait for rank 2
    EXPECT_THAT(count_ranks_at("a", rank, 3, store, long_limit()).status().message(),
                HasSubstr("two processes have rank 1 of 3"));
}

TEST(HostPlaces, ThePlaceOfThisProcessIsConstant) {
  EXPECT_EQ(own_place(), own_place());
  EXPECT_THAT(own_place(), HasSubstr("net:["));
}

}  // namespace
}  // namespace farandole
