#include "rendezvous/job_name.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "rendezvous/keys.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/memory_store.h"

namespace farandole {
namespace {

WaitLimit no_wait() { return {TimePoint{}, kNotInterrupted}; }
WaitLimit long_enough() {
  return {std::chrono::steady_clock::now() + std::chrono::minutes(1), kNotInterrupted};
}

TEST(JobName, TheFirstRankChoosesIt) {
  MemoryStore store;
  const auto name = job_name(store);
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(job_name(store).value(), name.value());
}

TEST(JobName, OtherRanksOfAnElasticJobWaitForRank0) {
  MemoryStore store;
  EXPECT_EQ(elastic_job_name(store, 1, {}, "gone", no_wait()).status().code(), StatusCode::kRetry);
  Result<ElasticJobName> name_of_rank_1 = Status::stop("no answer");
  std::thread rank_1(
      [&] { name_of_rank_1 = elastic_job_name(store, 1, {}, "gone", long_enough()); });
  const auto name_of_rank_0 = elastic_job_name(store, 0, {}, "gone", long_enough());
  rank_1.join();
  ASSERT_TRUE(name_of_rank_0.ok() && name_of_rank_1.ok());
  EXPECT_EQ(name_of_rank_1->name, name_of_rank_0->name);
  EXPECT_EQ(name_of_rank_1->zero, name_of_rank_0->zero);
  EXPECT_EQ(job_name(store).value(), name_of_rank_0->name) << "the launcher finds it there, too";
}

// A launcher with an empty Store has replaced a lost launcher. Rank 1 is a new worker.
TEST(JobName, ANewStoreGetsTheNameOfTheElasticJob) {
  MemoryStore store;
  const ElasticJobName remembered{.name = "12.34", .zero = TimePoint(std::chrono::seconds(5))};
  ASSERT_TRUE(elastic_job_name(store, 0, remembered, "gone", no_wait()).ok());
  const auto name_of_rank_1 = elastic_job_name(store, 1, {}, "gone", no_wait());
  ASSERT_TRUE(name_of_rank_1.ok());
  EXPECT_EQ(name_of_rank_1->name, "12.34");
  EXPECT_EQ(name_of_rank_1->zero, TimePoint(std::chrono::seconds(5)));
}

TEST(JobName, RanksDoNotWaitForALostRank0) {
  MemoryStore store;
  ASSERT_EQ(store.set("gone", {}), Status());
  EXPECT_EQ(elastic_job_name(store, 1, {}, "gone", long_enough()).status(),
            Status::rebuild_group("a member of the group is gone, so the group is formed again"));
}

}  // namespace
}  // namespace farandole
