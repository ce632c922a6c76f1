#include "membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MembershipTest : public ::testing::Test {
 protected:
  // Starts all workers and forms the first epoch.
  void begin(Membership::Options options) {
    job_.emplace(options);
    for (int worker = 0; worker < options.workers; ++worker) job_->worker_started(worker, now_);
    for (int worker = 0; worker < options.workers; ++worker) ask(worker);
  }
  void ask(int worker, bool has_state = false) {
    const std::int64_t left = job_->is_member(worker) ? job_->epoch().number : 0;
    job_->rank_wanted(worker, left, has_state ? left : 0);
    decide();
  }
  void end(int worker, bool succeeded = false) {
    job_->worker_ended(worker, succeeded, now_);
    decide();
  }
  void start(int worker) {
    job_->worker_started(worker, now_);
    decide();
  }
  void wait(Duration time) {
    now_ += time;
    decide();
  }
  void decide() { last_ = job_->decide(now_); }
  std::vector<int> formed() const {
    return last_.epoch ? last_.epoch->workers : std::vector<int>();
  }

  TimePoint now_ = TimePoint{} + seconds(1000);
  std::optional<Membership> job_;
  Membership::Decisions last_;
};

TEST_F(MembershipTest, TheFirstEpochHasAllWorkers) {
  job_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) start(worker);
  ask(2);
  ask(0);
  EXPECT_THAT(formed(), IsEmpty());
  ask(1);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2));
  EXPECT_EQ(last_.epoch->number, 1);
  decide();
  EXPECT_THAT(formed(), IsEmpty()) << "each decision is returned once";
}

TEST_F(MembershipTest, AHostLeavesAtTheNextChange) {
  begin({.workers = 3, .workers_min = 1});
  job_->slot_leaves(1);
  decide();
  EXPECT_TRUE(last_.announces_change);
  ask(1, true);
  ask(0, true);
  EXPECT_THAT(last_.superfluous, IsEmpty()) << "its memory may be in use";
  ask(2, true);
  EXPECT_THAT(formed(), ElementsAre(0, 2));
  EXPECT_THAT(last_.superfluous, ElementsAre(1));
  EXPECT_FALSE(job_->matters(1));
  end(1);
  wait(seconds(1000));
  EXPECT_THAT(last_.starts, IsEmpty());
  job_->slot_opened(1);
  decide();
  EXPECT_THAT(last_.starts, ElementsAre(1));
}

TEST_F(MembershipTest, TheOnlyWorkerWithTheStateStaysUntilAnotherHasIt) {
  begin({.workers = 1, .workers_min = 1});
  job_->slot_leaves(0);
  decide();
  EXPECT_FALSE(last_.announces_change) << "nobody could go on";
  job_->add_slots(1);
  decide();
  EXPECT_THAT(last_.starts, ElementsAre(1));
  start(1);
  ask(1);
  EXPECT_TRUE(last_.announces_change);
  ask(0, true);
  EXPECT_THAT(formed(), ElementsAre(0, 1)) << "worker 1 gets the state from worker 0";
  EXPECT_THAT(last_.superfluous, IsEmpty());
  decide();
  EXPECT_TRUE(last_.announces_change);
  ask(0, true);
  ask(1, true);
  EXPECT_THAT(formed(), ElementsAre(1));
  EXPECT_THAT(last_.superfluous, ElementsAre(0));
}

TEST_F(MembershipTest, IfTooFewWouldBeLeftThoseThatLeaveStayUntilOthersCome) {
  begin({.workers = 3, .workers_min = 2});
  for (const int worker : {1, 2}) job_->slot_leaves(worker);
  decide();
  EXPECT_FALSE(last_.announces_change) << "one worker would be too few";
  end(2);
  ask(0, true);
  ask(1, true);
  EXPECT_THAT(formed(), ElementsAre(0, 1)) << "worker 1 stays for now";
  job_->add_slots(1);
  decide();
  EXPECT_THAT(last_.starts, ElementsAre(3));
  start(3);
  ask(3);
  EXPECT_TRUE(last_.announces_change);
  ask(0, true);
  ask(1, true);
  EXPECT_THAT(formed(), ElementsAre(0, 3));
  EXPECT_THAT(last_.superfluous, ElementsAre(1));
}

TEST_F(MembershipTest, NewSlotsGetWorkersUpToTheMaximum) {
  begin({.workers = 2, .workers_min = 1, .workers_max = 3});
  job_->add_slots(2);
  decide();
  EXPECT_THAT(last_.starts, ElementsAre(2));
  start(2);
  EXPECT_FALSE(job_->deadline().has_value());
  job_->slot_leaves(0);
  decide();
  EXPECT_THAT(last_.starts, ElementsAre(3)) << "the one that leaves does not count";
}

TEST_F(MembershipTest, AWorkerThatLeavesBeforeTheFirstEpochIsNotWaitedFor) {
  job_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  for (const int worker : {0, 1}) start(worker);
  ask(0);
  job_->slot_leaves(1);
  decide();
  EXPECT_THAT(last_.superfluous, ElementsAre(1));
  end(1);
  EXPECT_THAT(formed(), ElementsAre(0));
}

TEST_F(MembershipTest, SurvivorsGoOnAtOnce) {
  begin({.workers = 4, .workers_min = 2});
  end(3);
  EXPECT_EQ(last_.end, "");
  ask(0);
  ask(2);
  EXPECT_THAT(formed(), IsEmpty()) << "worker 1 may still write to the memory of the group";
  ask(1);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2));
  EXPECT_EQ(last_.epoch->number, 2);
}

TEST_F(MembershipTest, SurvivorsKeepTheirRanksAndRankZeroIsASurvivor) {
  begin({.workers = 4, .workers_min = 1});
  end(0);
  for (const int worker : {1, 2, 3}) ask(worker);
  EXPECT_THAT(formed(), ElementsAre(3, 1, 2)) << "rank 3 is gone, so worker 3 moves";
  wait(seconds(1));
  EXPECT_THAT(last_.starts, ElementsAre(0));
  start(0);
  ask(0);
  EXPECT_TRUE(last_.announces_change);
  for (const int worker : {1, 2, 3}) ask(worker);
  EXPECT_THAT(formed(), ElementsAre(3, 1, 2, 0));
}

TEST_F(MembershipTest, AReplacementNeverGetsRankZero) {
  begin({.workers = 3, .workers_min = 3});
  end(0);
  ask(1);
  ask(2);
  EXPECT_THAT(formed(), IsEmpty());
  wait(seconds(1));
  start(0);
  ask(0);
  EXPECT_THAT(formed(), ElementsAre(1, 0, 2));
}

TEST_F(MembershipTest, WorkersThatOthersWaitForAreNamedOnce) {
  begin({.workers = 3, .workers_min = 1});
  end(2);
  ask(0);
  EXPECT_THAT(last_.late, IsEmpty());
  wait(seconds(10));
  EXPECT_THAT(last_.late, ElementsAre(1));
  wait(seconds(10));
  EXPECT_THAT(last_.late, IsEmpty());
  ask(1);
  EXPECT_THAT(formed(), ElementsAre(0, 1));
}

TEST_F(MembershipTest, WorkersThatDoNotComeAtTheStartAreNamed) {
  job_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) start(worker);
  wait(seconds(20));
  EXPECT_THAT(last_.late, IsEmpty()) << "nobody waits";
  ask(1);
  wait(seconds(10));
  EXPECT_THAT(last_.late, ElementsAre(0, 2));
}

// A new worker is a member before it has been sent the state.
class MembershipWithState : public MembershipTest {
 protected:
  // Worker 1 has been replaced, and the new worker is a member.
  void SetUp() override {
    begin({.workers = 3, .workers_min = 1});
    end(1);
    ask(0, true);
    ask(2, true);
    wait(seconds(1));
    start(1);
    ask(1);
    ask(0, true);
    ask(2, true);
    ASSERT_THAT(formed(), ElementsAre(0, 2, 1));
  }
};

TEST_F(MembershipWithState, AMemberWithoutTheStateNeverGetsRankZero) {
  end(0);
  ask(1);
  ask(2, true);
  EXPECT_THAT(formed(), ElementsAre(2, 1));
  end(2);
  ask(1, true);
  EXPECT_THAT(formed(), ElementsAre(1)) << "it has been sent the state meanwhile";
}

TEST_F(MembershipWithState, ItLosesRankZeroIfItHasIt) {
  end(0);
  end(2);
  wait(seconds(1));
  EXPECT_EQ(last_.end, "") << "perhaps worker 1 has the state";
  ask(1, true);
  ASSERT_THAT(formed(), ElementsAre(1));
}

TEST_F(MembershipWithState, WithoutTheStateTheJobEnds) {
  end(0);
  end(2);
  ask(1);
  EXPECT_THAT(last_.end, HasSubstr("no worker is left that has the state"));
}

TEST_F(MembershipWithState, AfterASuccessAMemberWithoutTheStateIsNotNeeded) {
  end(0, true);
  end(2, true);
  ask(1);
  EXPECT_THAT(formed(), IsEmpty());
  EXPECT_EQ(last_.end, "");
  EXPECT_THAT(last_.superfluous, ElementsAre(1));
  EXPECT_FALSE(job_->matters(1));
}

TEST_F(MembershipTest, AChangeIsAnnouncedOncePerEpoch) {
  begin({.workers = 3, .workers_min = 1});
  end(1);
  end(2);
  ask(0);
  EXPECT_THAT(formed(), ElementsAre(0));
  wait(seconds(1));
  EXPECT_THAT(last_.starts, ElementsAre(1, 2));
  start(1);
  start(2);
  EXPECT_FALSE(last_.announces_change) << "nobody waits";
  ask(1);
  EXPECT_TRUE(last_.announces_change);
  ask(2);
  EXPECT_FALSE(last_.announces_change);
  ask(0);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2));
}

TEST_F(MembershipTest, ANewWorkerThatStillStartsDelaysNobody) {
  begin({.workers = 3, .workers_min = 1});
  end(2);
  wait(seconds(1));
  start(2);
  end(1);
  ask(0);
  EXPECT_THAT(formed(), ElementsAre(0));
}

TEST_F(MembershipTest, TheCooldownOfASlotDoublesWithEachFailure) {
  begin({.workers = 2, .workers_min = 1, .cooldown_max = seconds(3)});
  for (const int expected : {1, 2, 3, 3}) {
    end(1);
    ask(0);
    EXPECT_EQ(job_->deadline(), now_ + seconds(expected));
    wait(seconds(expected) - milliseconds(1));
    EXPECT_THAT(last_.starts, IsEmpty());
    wait(milliseconds(1));
    EXPECT_THAT(last_.starts, ElementsAre(1));
    start(1);
  }
  wait(seconds(4));  // longer than the longest time
  end(1);
  EXPECT_EQ(job_->deadline(), now_ + seconds(1));
}

TEST_F(MembershipTest, TheCooldownBeginsAgainAfterALongRun) {
  begin({.workers = 2, .workers_min = 1});
  for (const int run : {1, 9, 21}) {
    wait(seconds(run));
    end(1);
    ask(0);
    EXPECT_EQ(job_->deadline(), now_ + seconds(run == 9 ? 2 : 1)) << run;
    wait(seconds(2));
    start(1);
    ask(1);
  }
}

TEST_F(MembershipTest, ACooldownThatBeginsWithNothingGrows) {
  begin({.workers = 2, .workers_min = 1, .cooldown_min = seconds(0)});
  for (const int expected : {0, 1, 2, 4}) {
    job_->worker_ended(1, false, now_);
    EXPECT_EQ(job_->deadline(), now_ + seconds(expected));
    ask(0);
    wait(seconds(expected));
    start(1);
  }
}

TEST_F(MembershipTest, AStoppedWorkerIsEndedAfterSomeTime) {
  begin({.workers = 2, .workers_min = 1});
  job_->worker_stopped(1, now_);
  wait(seconds(9));
  EXPECT_THAT(last_.stopped, IsEmpty());
  job_->worker_continued(1);
  wait(seconds(2));
  EXPECT_THAT(last_.stopped, IsEmpty());
  job_->worker_stopped(1, now_);
  wait(seconds(10));
  EXPECT_THAT(last_.stopped, ElementsAre(1));
  wait(seconds(10));
  EXPECT_THAT(last_.stopped, IsEmpty()) << "each decision is returned once";
}

TEST_F(MembershipTest, AFailureBeforeTheFirstEpochEndsTheJob) {
  job_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  start(0);
  start(1);
  end(1);
  EXPECT_THAT(last_.end, HasSubstr("failed before all workers had joined the job"));
}

TEST_F(MembershipTest, AWorkerThatEndsInsteadOfComingEndsTheJob) {
  job_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  start(0);
  start(1);
  end(1, true);
  EXPECT_EQ(last_.end, "") << "perhaps the program does not call init()";
  ask(0);
  EXPECT_THAT(last_.end, HasSubstr("ended before all workers had joined the job"));
}

TEST_F(MembershipTest, AJobWithoutSurvivorsEnds) {
  begin({.workers = 2, .workers_min = 1});
  end(1);
  ask(0);
  wait(seconds(1));
  start(1);
  ask(1);
  end(0);
  EXPECT_THAT(last_.end, HasSubstr("no worker is left that has the state"));
}

TEST_F(MembershipTest, AShortageEndsTheJobAtTheLimit) {
  begin({.workers = 2, .workers_min = 2, .shortage_max = seconds(20)});
  end(1);
  ask(0);
  wait(seconds(1));
  start(1);  // it never asks for a rank
  wait(seconds(18));
  EXPECT_EQ(last_.end, "");
  wait(seconds(1));
  EXPECT_EQ(last_.end, "fewer than 2 workers could be found within 20 s");
}

TEST_F(MembershipTest, TheLimitOfResetsEndsTheJob) {
  begin({.workers = 3, .workers_min = 1, .resets_max = 1});
  end(2);
  ask(0);
  ask(1);
  EXPECT_THAT(formed(), ElementsAre(0, 1));
  end(1);
  ask(0);
  EXPECT_THAT(formed(), IsEmpty());
  EXPECT_THAT(last_.end, HasSubstr("the limit of 1 resets is reached"));
}

TEST_F(MembershipTest, AJobContinuesFromTheLastEpoch) {
  job_.emplace(Membership::Options{.workers = 4, .workers_min = 1, .resets_max = 8});
  for (const int worker : {0, 1, 2}) job_->worker_started(worker, now_);
  job_->worker_ended(2, false, now_);
  job_->continue_from({.last = {.number = 7, .workers = {1, 0}}, .members = {0, 1}}, now_);
  decide();
  EXPECT_THAT(last_.end, IsEmpty());
  EXPECT_TRUE(job_->is_member(0) && job_->is_member(1));
  wait(seconds(1));
  EXPECT_THAT(last_.starts, ElementsAre(2, 3)) << "also where nobody has been found";
  ask(0, true);
  ask(1, true);
  EXPECT_EQ(last_.epoch->number, 10);
  EXPECT_THAT(formed(), ElementsAre(1, 0));
  ask(0, true);
  ask(1, true);
  EXPECT_EQ(last_.epoch->number, 11) << "only two numbers are skipped";
  ask(0, true);
  ask(1, true);
  EXPECT_THAT(last_.end, HasSubstr("the limit of 8 resets")) << "6 were before";
}

TEST_F(MembershipTest, ANewWorkerThatMightHaveBeenAMemberDoesNotBeginAnew) {
  job_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  for (const int worker : {0, 1}) job_->worker_started(worker, now_);
  job_->continue_from({.last = {.number = 1, .workers = {0}}, .newest_epoch = 2}, now_);
  job_->rank_wanted(1, 0, 0);
  decide();
  EXPECT_THAT(last_.end, IsEmpty());
  end(0);
  EXPECT_THAT(formed(), IsEmpty());
  EXPECT_THAT(last_.end, HasSubstr("no worker is left that has the state"));
}

TEST_F(MembershipTest, AMemberOfAnUnknownGroupGetsRank0) {
  job_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  job_->worker_started(2, now_);
  job_->continue_from({.last = {7, {1, 0}}, .newest_epoch = 8}, now_);
  for (const int worker : {0, 1}) job_->worker_started(worker, now_);
  for (const int worker : {0, 1}) job_->rank_wanted(worker, 0, 0);
  job_->rank_wanted(2, 8, 8);
  decide();
  ASSERT_EQ(formed().size(), 3U);
  EXPECT_EQ(formed()[0], 2) << "only this worker has the state";
}

TEST_F(MembershipTest, WorkersOfAnOlderGroupAreWaitedFor) {
  job_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) job_->worker_started(worker, now_);
  job_->continue_from({.last = {7, {0}}, .members = {0}, .members_of_older = {1}}, now_);
  ask(0, true);
  EXPECT_THAT(formed(), IsEmpty()) << "worker 1 may still write to shared memory";
  job_->rank_wanted(1, 5, 5);
  decide();
  EXPECT_THAT(formed(), ElementsAre(0, 1)) << "worker 2 has not been in a group";
}

TEST_F(MembershipTest, WorkersTellOfANewerEpoch) {
  job_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) job_->worker_started(worker, now_);
  job_->continue_from(
      {.last = {3, {0, 1}}, .members = {0, 1}, .state_epoch = 3, .lost_launcher_was_first = false},
      now_);
  job_->rank_wanted(0, 3, 3);  // it was not in epoch 5
  job_->rank_wanted(1, 5, 5);
  decide();
  EXPECT_THAT(formed(), IsEmpty()) << "worker 2 may still be in epoch 5";
  job_->rank_wanted(2, 5, 5);
  decide();
  EXPECT_EQ(last_.epoch->number, 8);
  EXPECT_THAT(formed(), ElementsAre(1, 0, 2)) << "the state of epoch 3 is too old for rank 0";
}

// Two workers run that were in group 2, and worker 2, which may have joined in a later one.
class MembershipAfterLoss : public MembershipTest {
 protected:
  void continue_from(std::int64_t newest, bool lost_launcher_was_first = true) {
    job_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
    for (const int worker : {0, 1, 2}) job_->worker_started(worker, now_);
    if (is_leaving_) job_->slot_leaves(0);
    job_->continue_from({.last = {2, {0, 1}},
                         .members = {0, 1},
                         .state_epoch = 1,
                         .newest_epoch = newest,
                         .lost_launcher_was_first = lost_launcher_was_first},
                        now_);
  }
  // The workers leave these epochs, of which those of group 2 have got the state of epoch 1.
  void ask_all(std::int64_t of_group_2, std::int64_t of_other) {
    job_->rank_wanted(2, of_other, 0);
    for (const int worker : {0, 1}) job_->rank_wanted(worker, of_group_2, 1);
    decide();
  }
  bool has_lost_state() const { return last_.end.find("no worker is left") != std::string::npos; }

  bool is_leaving_ = false;
};

TEST_F(MembershipAfterLoss, AGroupThatNotAllHaveHeardOfLosesNothing) {
  continue_from(2);
  ask_all(2, 3);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2)) << "all were in group 3, which has done no step";
  EXPECT_EQ(last_.epoch->number, 6);
  continue_from(3);
  ask_all(2, 0);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2)) << "only the driver has heard of group 3";
  continue_from(4);
  ask_all(2, 0);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2)) << "they were in both groups";
}

TEST_F(MembershipAfterLoss, AWorkerThatLeavesMayHaveAnOldState) {
  is_leaving_ = true;
  continue_from(2);
  for (const int worker : {1, 2}) end(worker);
  job_->rank_wanted(0, 2, 1);
  decide();
  EXPECT_THAT(formed(), ElementsAre(0)) << "nothing is known of a newer group";
  continue_from(3);
  for (const int worker : {1, 2}) end(worker);
  job_->rank_wanted(0, 2, 1);
  decide();
  EXPECT_TRUE(has_lost_state()) << "the others may have gone on without it";
}

TEST_F(MembershipAfterLoss, AnotherLauncherMayHaveGoneOnWithoutThem) {
  continue_from(3, false);
  ask_all(2, 0);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2)) << "the same launcher has formed groups 2 and 3";
  continue_from(5, false);
  ask_all(2, 0);
  EXPECT_TRUE(has_lost_state()) << "group 5 may have done steps without them";
  continue_from(2, false);
  ask_all(2, 5);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2)) << "a member of group 5 has got no state there";
  continue_from(4, false);
  ask_all(2, 5);
  EXPECT_TRUE(has_lost_state()) << "group 4 may have done steps without them";
}

TEST_F(MembershipTest, AfterASuccessNobodyJoins) {
  begin({.workers = 3, .workers_min = 2});
  end(2);
  ask(0);
  ask(1);
  EXPECT_THAT(formed(), ElementsAre(0, 1));
  wait(seconds(1));
  start(2);
  end(0, true);
  EXPECT_THAT(last_.superfluous, ElementsAre(2));
  end(2);
  EXPECT_EQ(last_.end, "");
  EXPECT_EQ(job_->deadline(), std::nullopt);
  ask(1);
  EXPECT_THAT(formed(), ElementsAre(1)) << "the rest finishes, even below the minimum";
  end(1, true);
  EXPECT_EQ(last_.end, "");
}

}  // namespace
}  // namespace farandole
