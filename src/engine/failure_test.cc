#include "engine/failure.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "submission/submission_table.h"
#include "transport/shm/segment.h"

namespace farandole {
namespace {

const std::vector<std::int64_t> kPids = {100, 101, 102, 103};

EndedRanks no_ended_ranks() {
  EndedRanks ended;
  ended.leavers.resize(kPids.size());
  return ended;
}

TEST(Failure, AGroupGoesOnUntilADeathOrALeaveOfAMember) {
  EndedRanks ended = no_ended_ranks();
  EXPECT_FALSE(failure_of(ended, {0, 1}, 0, kPids));
  ended.leavers[2] = {1, "enough"};
  EXPECT_FALSE(failure_of(ended, {0, 1}, 0, kPids));
  const auto leave_failure = failure_of(ended, {0, 2}, 0, kPids);
  ASSERT_TRUE(leave_failure);
  EXPECT_EQ(leave_failure->failed_rank, 2);
  EXPECT_EQ(leave_failure->status.message(),
            "rank 2 (pid 102) has left the job (enough); all ranks must make the same calls before "
            "any of them leaves");
  ended.first_dead_rank = 3;
  ended.leaves_before_death = 1;
  const auto death_failure = failure_of(ended, {0, 1}, 0, kPids);
  ASSERT_TRUE(death_failure);
  EXPECT_EQ(death_failure->failed_rank, 3);
  EXPECT_EQ(death_failure->status.message(),
            "rank 3 (pid 103) has died; this job is over: shut down, and start it again");
  ended.death_text = "has died or is cut off (rank 0 has lost the connection to it: reset)";
  EXPECT_EQ(
      failure_of(ended, {0, 1}, 0, kPids)->status.message(),
      "rank 3 (pid 103) has died or is cut off (rank 0 has lost the connection to it: reset); "
      "this job is over: shut down, and start it again");
}

TEST(Failure, NamesTheFirstOfSeveralCauses) {
  EndedRanks ended = no_ended_ranks();
  ended.first_dead_rank = 1;
  ended.leaves_before_death = 1;
  ended.leavers[2] = {2, "after the death"};
  EXPECT_EQ(failure_of(ended, {0, 1, 2, 3}, 0, kPids)->failed_rank, 1);
  ended.leavers[3] = {1, "before it"};
  EXPECT_EQ(failure_of(ended, {0, 1, 2, 3}, 0, kPids)->failed_rank, 3);
  ended.first_dead_rank.reset();
  EXPECT_EQ(failure_of(ended, {0, 1, 2, 3}, 0, kPids)->failed_rank, 3);
}

TEST(Failure, AMembersOwnLeaveIsNoFailureOfItsGroup) {
  EndedRanks ended = no_ended_ranks();
  ended.leavers[0] = {1, "enough"};
  EXPECT_FALSE(failure_of(ended, {0, 1}, 0, kPids));
}

class FailureWatchTest : public ::testing::Test {
 protected:
  static constexpr int kSize = 3;
  FailureWatchTest()
      : memory_(Segment::create("farandole-test", Doorbells::bytes_needed(kSize)).value()),
        doorbells_(memory_->data(), 0, kSize),
        watch_(doorbells_) {}

  Doorbells::Header& header() { return *reinterpret_cast<Doorbells::Header*>(memory_->data()); }
  Doorbells::Line& line(int rank) {
    return reinterpret_cast<Doorbells::Line*>(memory_->data() + sizeof(Doorbells::Header))[rank];
  }

  std::shared_ptr<Segment> memory_;  // only the test owns this memory
  Doorbells doorbells_;
  FailureWatch watch_;
};

TEST_F(FailureWatchTest, ReadsEachEndOnce) {
  EXPECT_FALSE(watch_.has_changed());
  Doorbells(memory_->data(), 1, kSize).leave("enough");
  EXPECT_TRUE(watch_.has_changed());
  EXPECT_EQ(watch_.read().leavers[1]->reason, "enough");
  EXPECT_FALSE(watch_.has_changed());
  doorbells_.close(2, "has died of age");
  Doorbells(memory_->data(), 1, kSize).close(0, "is second");
  EXPECT_TRUE(watch_.has_changed());
  const EndedRanks ended = watch_.read();
  EXPECT_EQ(ended.first_dead_rank, 2);
  EXPECT_EQ(ended.leaves_before_death, 1u);
  EXPECT_EQ(ended.death_text, "has died of age");
  EXPECT_FALSE(watch_.has_changed());
}

// A rank that leaves draws a ticket before it stores that it has left. A read between these two
// must be repeated.
TEST_F(FailureWatchTest, AnUnfinishedLeaveIsReadAgain) {
  header().leavers.store(1);
  EXPECT_TRUE(watch_.has_changed());
  EXPECT_FALSE(watch_.read().leavers[1].has_value());
  EXPECT_TRUE(watch_.has_changed());
  line(1).left.store(1);
  EXPECT_TRUE(watch_.has_changed());
  EXPECT_EQ(watch_.read().leavers[1]->ticket, 1u);
  EXPECT_FALSE(watch_.has_changed());
}

TEST(Failure, ARankGivesUpWhenItsOldestCallHasWaitedForTheLimit) {
  using std::chrono::seconds;
  const TimePoint now = TimePoint(seconds(1000));
  EXPECT_FALSE(reason_of_stall(nullptr, now, seconds(1)));
  Record record;
  record.submission.operation = Operation::kAllreduce;
  record.submission.name = "x";
  record.submitted_at = now - seconds(5);
  EXPECT_FALSE(reason_of_stall(&record, now, seconds(6)));
  const auto give_up_reason = reason_of_stall(&record, now, seconds(5));
  ASSERT_TRUE(give_up_reason);
  EXPECT_EQ(give_up_reason->status,
            Status::rebuild_group("allreduce `x` has waited 5 s for other ranks, which is the "
                                  "FARANDOLE_STALL_LIMIT; the launcher's report says for which"));
  EXPECT_EQ(give_up_reason->reason,
            "it gave up: allreduce `x` had waited 5 s, the FARANDOLE_STALL_LIMIT");
}

TEST(Failure, OnlyAGroupThatHasMetABugIsBroken) {
  EXPECT_FALSE(is_broken(std::nullopt));
  EXPECT_FALSE(is_broken(Status::rebuild_group("left")));
  ASSERT_TRUE(is_broken(Status::stop("a bug")));
  const GiveUpReason cause = reason_of_broken_group(Status::stop("a bug"));
  EXPECT_EQ(cause.status, Status::stop("a bug"));
  EXPECT_EQ(cause.reason, "its engine had to stop: a bug");
}

}  // namespace
}  // namespace farandole
