#include "elastic/elastic_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/keys.h"

namespace farandole {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ElasticJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int slot : {0, 1, 2}) start_worker(slot);
  }
  void start_worker(int slot) { numbers_[slot] = job_.worker_started(slot, now_); }
  void ask_for_rank(int slot, std::int64_t left) {
    const keys::RankRequest request{.left_epoch = left, .state_epoch = left};
    ASSERT_TRUE(store_->set(keys::rank_wanted(numbers_[slot]), request.encode()).ok());
  }
  void ask_for_all_ranks() {
    for (const int slot : {0, 1, 2}) ask_for_rank(slot, 0);
  }
  // An answer exists if the server rejects a second value for it.
  bool has_answer(int slot, std::int64_t left) {
    return !store_->set(keys::rank_given(numbers_[slot], left), {}).ok();
  }
  static std::string epoch_key(std::int64_t epoch, const std::string& name) {
    return keys::epoch_prefix(epoch) + name;
  }

  TimePoint now_ = TimePoint{} + seconds(1000);
  std::unique_ptr<StoreServer> store_ = StoreServer::create("the launcher").value();
  ElasticJob job_{{.workers = 3, .workers_min = 1}, *store_};
  int numbers_[3] = {};
};

TEST_F(ElasticJobTest, AllWorkersThatAskGetRanks) {
  ask_for_rank(0, 0);
  ask_for_rank(1, 0);
  EXPECT_FALSE(job_.advance(now_).new_epoch.has_value());
  ask_for_rank(2, 0);
  ASSERT_TRUE(job_.advance(now_).new_epoch.has_value());
  EXPECT_THAT(job_.membership().epoch().workers, ElementsAre(0, 1, 2));
  for (const int slot : {0, 1, 2}) {
    EXPECT_TRUE(has_answer(slot, 0));
    EXPECT_FALSE(has_answer(slot, 1));
  }
}

TEST_F(ElasticJobTest, ARequestIsReadOnce) {
  ask_for_all_ranks();
  ASSERT_TRUE(job_.advance(now_).new_epoch.has_value());
  EXPECT_FALSE(store_->has_key_with_prefix("rank_wanted/"));
  EXPECT_FALSE(job_.advance(now_).new_epoch.has_value());
}

TEST_F(ElasticJobTest, AMemberThatEndsFailsTheFormation) {
  ask_for_all_ranks();
  (void)job_.advance(now_);
  job_.worker_ended(1, false, "rank 1 (pid 12) was killed", now_);
  EXPECT_THAT(store_->text_at(epoch_key(1, keys::complete(keys::kFirstEpoch))).value(),
              HasSubstr("rank 1 (pid 12) was killed before all ranks"));
}

TEST_F(ElasticJobTest, AMemberThatAsksAgainFailsTheFormation) {
  ask_for_all_ranks();
  (void)job_.advance(now_);
  ask_for_rank(1, 1);
  (void)job_.advance(now_);
  EXPECT_EQ(store_->text_at(epoch_key(1, keys::complete(keys::kFirstEpoch))).value(),
            "worker 1 has left before all ranks had joined the job in init()");
}

TEST_F(ElasticJobTest, ANewWorkerOfASlotHasANewNumberAndItsOwnAnswers) {
  ask_for_all_ranks();
  (void)job_.advance(now_);
  const int old_number = numbers_[1];
  job_.worker_ended(1, false, "rank 1", now_);
  EXPECT_FALSE(job_.membership().is_needed(1));
  start_worker(1);
  EXPECT_NE(numbers_[1], old_number);
  ask_for_rank(1, 0);
  EXPECT_TRUE(job_.advance(now_).announces_change);
  EXPECT_FALSE(store_->set(epoch_key(1, keys::change_announced()), {}).ok()) << "it exists";
  ask_for_rank(0, 1);
  ask_for_rank(2, 1);
  ASSERT_TRUE(job_.advance(now_).new_epoch.has_value());
  EXPECT_THAT(job_.membership().epoch().workers, ElementsAre(0, 1, 2));
  EXPECT_TRUE(has_answer(1, 0));
  EXPECT_TRUE(has_answer(0, 1));
  EXPECT_FALSE(store_->has_key_with_prefix(epoch_key(1, "")))
      << "the keys of the last epoch are removed";
}

TEST_F(ElasticJobTest, TheMembersLearnThatOneIsGone) {
  ask_for_all_ranks();
  (void)job_.advance(now_);
  EXPECT_FALSE(store_->has_key_with_prefix(epoch_key(1, keys::member_is_gone())));
  ask_for_rank(2, 1);
  (void)job_.advance(now_);
  EXPECT_TRUE(store_->has_key_with_prefix(epoch_key(1, keys::member_is_gone())));
  ask_for_rank(0, 1);
  ask_for_rank(1, 1);
  ASSERT_TRUE(job_.advance(now_).new_epoch.has_value());
  EXPECT_FALSE(store_->has_key_with_prefix(epoch_key(1, ""))) << "no member needs it any more";
  job_.worker_ended(1, false, "rank 1", now_);
  EXPECT_TRUE(store_->has_key_with_prefix(epoch_key(2, keys::member_is_gone())));
}

TEST_F(ElasticJobTest, AWorkerThatEndsLeavesNoKeys) {
  ask_for_rank(1, 0);
  job_.worker_ended(1, false, "rank 1", now_);
  EXPECT_FALSE(store_->has_key_with_prefix("rank_wanted/"));
}

}  // namespace
}  // namespace farandole
