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
  void form_first_epoch(Membership::Options options) {
    membership_.emplace(options);
    for (int worker = 0; worker < options.workers; ++worker)
      membership_->worker_started(worker, now_);
    for (int worker = 0; worker < options.workers; ++worker) ask_for_rank(worker);
  }
  void ask_for_rank(int worker, bool has_state = false) {
    const std::int64_t left_epoch =
        membership_->is_member(worker) ? membership_->epoch().number : 0;
    membership_->rank_wanted(worker, left_epoch, has_state ? left_epoch : 0);
    decide();
  }
  void end_worker(int worker, bool succeeded = false) {
    membership_->worker_ended(worker, succeeded, now_);
    decide();
  }
  void start_worker(int worker) {
    membership_->worker_started(worker, now_);
    decide();
  }
  void advance_time(Duration time) {
    now_ += time;
    decide();
  }
  void decide() { decisions_ = membership_->decide(now_); }
  std::vector<int> formed_workers() const {
    return decisions_.new_epoch ? decisions_.new_epoch->workers : std::vector<int>();
  }

  TimePoint now_ = TimePoint{} + seconds(1000);
  std::optional<Membership> membership_;
  Membership::Decisions decisions_;
};

TEST_F(MembershipTest, TheFirstEpochHasAllWorkers) {
  membership_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) start_worker(worker);
  ask_for_rank(2);
  ask_for_rank(0);
  EXPECT_THAT(formed_workers(), IsEmpty());
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2));
  EXPECT_EQ(decisions_.new_epoch->number, 1);
  decide();
  EXPECT_THAT(formed_workers(), IsEmpty()) << "each decision is returned once";
}

TEST_F(MembershipTest, AWorkerOfALeavingHostLeavesAtTheNextChange) {
  form_first_epoch({.workers = 3, .workers_min = 1});
  membership_->slot_leaves(1);
  decide();
  EXPECT_TRUE(decisions_.announces_change);
  ask_for_rank(1, true);
  ask_for_rank(0, true);
  EXPECT_THAT(decisions_.superfluous_workers, IsEmpty()) << "its memory may be in use";
  ask_for_rank(2, true);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 2));
  EXPECT_THAT(decisions_.superfluous_workers, ElementsAre(1));
  EXPECT_FALSE(membership_->is_needed(1));
  end_worker(1);
  advance_time(seconds(1000));
  EXPECT_THAT(decisions_.slots_to_start, IsEmpty());
  membership_->slot_opened(1);
  decide();
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(1));
}

TEST_F(MembershipTest, TheOnlyWorkerWithTheStateStaysUntilAnotherHasIt) {
  form_first_epoch({.workers = 1, .workers_min = 1});
  membership_->slot_leaves(0);
  decide();
  EXPECT_FALSE(decisions_.announces_change) << "no worker could continue";
  membership_->add_slots(1);
  decide();
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(1));
  start_worker(1);
  ask_for_rank(1);
  EXPECT_TRUE(decisions_.announces_change);
  ask_for_rank(0, true);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1)) << "worker 1 gets the state from worker 0";
  EXPECT_THAT(decisions_.superfluous_workers, IsEmpty());
  decide();
  EXPECT_TRUE(decisions_.announces_change);
  ask_for_rank(0, true);
  ask_for_rank(1, true);
  EXPECT_THAT(formed_workers(), ElementsAre(1));
  EXPECT_THAT(decisions_.superfluous_workers, ElementsAre(0));
}

TEST_F(MembershipTest, LeavingWorkersStayUntilEnoughOthersHaveCome) {
  form_first_epoch({.workers = 3, .workers_min = 2});
  for (const int worker : {1, 2}) membership_->slot_leaves(worker);
  decide();
  EXPECT_FALSE(decisions_.announces_change) << "one remaining worker would be too few";
  end_worker(2);
  ask_for_rank(0, true);
  ask_for_rank(1, true);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1)) << "worker 1 stays for now";
  membership_->add_slots(1);
  decide();
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(3));
  start_worker(3);
  ask_for_rank(3);
  EXPECT_TRUE(decisions_.announces_change);
  ask_for_rank(0, true);
  ask_for_rank(1, true);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 3));
  EXPECT_THAT(decisions_.superfluous_workers, ElementsAre(1));
}

TEST_F(MembershipTest, NewSlotsGetWorkersUpToTheMaximum) {
  form_first_epoch({.workers = 2, .workers_min = 1, .workers_max = 3});
  membership_->add_slots(2);
  decide();
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(2));
  start_worker(2);
  EXPECT_FALSE(membership_->deadline().has_value());
  membership_->slot_leaves(0);
  decide();
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(3)) << "a worker that leaves does not count";
}

TEST_F(MembershipTest, AWorkerThatLeavesBeforeTheFirstEpochIsNotWaitedFor) {
  membership_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  for (const int worker : {0, 1}) start_worker(worker);
  ask_for_rank(0);
  membership_->slot_leaves(1);
  decide();
  EXPECT_THAT(decisions_.superfluous_workers, ElementsAre(1));
  end_worker(1);
  EXPECT_THAT(formed_workers(), ElementsAre(0));
}

TEST_F(MembershipTest, SurvivorsContinueAtOnce) {
  form_first_epoch({.workers = 4, .workers_min = 2});
  end_worker(3);
  EXPECT_EQ(decisions_.end_reason, "");
  ask_for_rank(0);
  ask_for_rank(2);
  EXPECT_THAT(formed_workers(), IsEmpty()) << "worker 1 may still write to the memory of the group";
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2));
  EXPECT_EQ(decisions_.new_epoch->number, 2);
}

TEST_F(MembershipTest, SurvivorsKeepTheirRanksAndRankZeroIsASurvivor) {
  form_first_epoch({.workers = 4, .workers_min = 1});
  end_worker(0);
  for (const int worker : {1, 2, 3}) ask_for_rank(worker);
  EXPECT_THAT(formed_workers(), ElementsAre(3, 1, 2)) << "rank 3 is gone, so worker 3 moves";
  advance_time(seconds(1));
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(0));
  start_worker(0);
  ask_for_rank(0);
  EXPECT_TRUE(decisions_.announces_change);
  for (const int worker : {1, 2, 3}) ask_for_rank(worker);
  EXPECT_THAT(formed_workers(), ElementsAre(3, 1, 2, 0));
}

TEST_F(MembershipTest, AReplacementNeverGetsRankZero) {
  form_first_epoch({.workers = 3, .workers_min = 3});
  end_worker(0);
  ask_for_rank(1);
  ask_for_rank(2);
  EXPECT_THAT(formed_workers(), IsEmpty());
  advance_time(seconds(1));
  start_worker(0);
  ask_for_rank(0);
  EXPECT_THAT(formed_workers(), ElementsAre(1, 0, 2));
}

TEST_F(MembershipTest, WorkersThatOthersWaitForAreNamedOnce) {
  form_first_epoch({.workers = 3, .workers_min = 1});
  end_worker(2);
  ask_for_rank(0);
  EXPECT_THAT(decisions_.late_workers, IsEmpty());
  advance_time(seconds(10));
  EXPECT_THAT(decisions_.late_workers, ElementsAre(1));
  advance_time(seconds(10));
  EXPECT_THAT(decisions_.late_workers, IsEmpty());
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1));
}

TEST_F(MembershipTest, WorkersThatDoNotAskAtTheStartAreNamed) {
  membership_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) start_worker(worker);
  advance_time(seconds(20));
  EXPECT_THAT(decisions_.late_workers, IsEmpty()) << "nobody waits";
  ask_for_rank(1);
  advance_time(seconds(10));
  EXPECT_THAT(decisions_.late_workers, ElementsAre(0, 2));
}

// A new worker is a member before it has received the state.
class MembershipWithState : public MembershipTest {
 protected:
  // Worker 1 has been replaced, and the new worker is a member.
  void SetUp() override {
    form_first_epoch({.workers = 3, .workers_min = 1});
    end_worker(1);
    ask_for_rank(0, true);
    ask_for_rank(2, true);
    advance_time(seconds(1));
    start_worker(1);
    ask_for_rank(1);
    ask_for_rank(0, true);
    ask_for_rank(2, true);
    ASSERT_THAT(formed_workers(), ElementsAre(0, 2, 1));
  }
};

TEST_F(MembershipWithState, AMemberWithoutTheStateNeverGetsRankZero) {
  end_worker(0);
  ask_for_rank(1);
  ask_for_rank(2, true);
  EXPECT_THAT(formed_workers(), ElementsAre(2, 1));
  end_worker(2);
  ask_for_rank(1, true);
  EXPECT_THAT(formed_workers(), ElementsAre(1)) << "worker 1 has received the state meanwhile";
}

TEST_F(MembershipWithState, AMemberThatGotTheStateMeanwhileGoesOnAlone) {
  end_worker(0);
  end_worker(2);
  advance_time(seconds(1));
  EXPECT_EQ(decisions_.end_reason, "") << "perhaps worker 1 has the state";
  ask_for_rank(1, true);
  ASSERT_THAT(formed_workers(), ElementsAre(1));
}

TEST_F(MembershipWithState, WithoutTheStateTheJobEnds) {
  end_worker(0);
  end_worker(2);
  ask_for_rank(1);
  EXPECT_THAT(decisions_.end_reason, HasSubstr("no worker is left that has the state"));
}

TEST_F(MembershipWithState, AfterASuccessAMemberWithoutTheStateIsNotNeeded) {
  end_worker(0, true);
  end_worker(2, true);
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), IsEmpty());
  EXPECT_EQ(decisions_.end_reason, "");
  EXPECT_THAT(decisions_.superfluous_workers, ElementsAre(1));
  EXPECT_FALSE(membership_->is_needed(1));
}

TEST_F(MembershipTest, AChangeIsAnnouncedOncePerEpoch) {
  form_first_epoch({.workers = 3, .workers_min = 1});
  end_worker(1);
  end_worker(2);
  ask_for_rank(0);
  EXPECT_THAT(formed_workers(), ElementsAre(0));
  advance_time(seconds(1));
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(1, 2));
  start_worker(1);
  start_worker(2);
  EXPECT_FALSE(decisions_.announces_change) << "nobody waits";
  ask_for_rank(1);
  EXPECT_TRUE(decisions_.announces_change);
  ask_for_rank(2);
  EXPECT_FALSE(decisions_.announces_change);
  ask_for_rank(0);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2));
}

TEST_F(MembershipTest, ANewWorkerThatStillStartsDelaysNoOther) {
  form_first_epoch({.workers = 3, .workers_min = 1});
  end_worker(2);
  advance_time(seconds(1));
  start_worker(2);
  end_worker(1);
  ask_for_rank(0);
  EXPECT_THAT(formed_workers(), ElementsAre(0));
}

TEST_F(MembershipTest, TheCooldownOfASlotDoublesWithEachFailure) {
  form_first_epoch({.workers = 2, .workers_min = 1, .cooldown_max = seconds(3)});
  for (const int cooldown_seconds : {1, 2, 3, 3}) {
    end_worker(1);
    ask_for_rank(0);
    EXPECT_EQ(membership_->deadline(), now_ + seconds(cooldown_seconds));
    advance_time(seconds(cooldown_seconds) - milliseconds(1));
    EXPECT_THAT(decisions_.slots_to_start, IsEmpty());
    advance_time(milliseconds(1));
    EXPECT_THAT(decisions_.slots_to_start, ElementsAre(1));
    start_worker(1);
  }
  advance_time(seconds(4));  // longer than cooldown_max
  end_worker(1);
  EXPECT_EQ(membership_->deadline(), now_ + seconds(1));
}

TEST_F(MembershipTest, TheCooldownBeginsAgainAfterALongRun) {
  form_first_epoch({.workers = 2, .workers_min = 1});
  for (const int run_seconds : {1, 9, 21}) {
    advance_time(seconds(run_seconds));
    end_worker(1);
    ask_for_rank(0);
    EXPECT_EQ(membership_->deadline(), now_ + seconds(run_seconds == 9 ? 2 : 1)) << run_seconds;
    advance_time(seconds(2));
    start_worker(1);
    ask_for_rank(1);
  }
}

TEST_F(MembershipTest, ACooldownOfZeroGrowsWithEachFailure) {
  form_first_epoch({.workers = 2, .workers_min = 1, .cooldown_min = seconds(0)});
  for (const int cooldown_seconds : {0, 1, 2, 4}) {
    membership_->worker_ended(1, false, now_);
    EXPECT_EQ(membership_->deadline(), now_ + seconds(cooldown_seconds));
    ask_for_rank(0);
    advance_time(seconds(cooldown_seconds));
    start_worker(1);
  }
}

TEST_F(MembershipTest, AStoppedWorkerIsEndedAfterSomeTime) {
  form_first_epoch({.workers = 2, .workers_min = 1});
  membership_->worker_stopped(1, now_);
  advance_time(seconds(9));
  EXPECT_THAT(decisions_.stopped_workers, IsEmpty());
  membership_->worker_continued(1);
  advance_time(seconds(2));
  EXPECT_THAT(decisions_.stopped_workers, IsEmpty());
  membership_->worker_stopped(1, now_);
  advance_time(seconds(10));
  EXPECT_THAT(decisions_.stopped_workers, ElementsAre(1));
  advance_time(seconds(10));
  EXPECT_THAT(decisions_.stopped_workers, IsEmpty()) << "each decision is returned once";
}

TEST_F(MembershipTest, AFailureBeforeTheFirstEpochEndsTheJob) {
  membership_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  start_worker(0);
  start_worker(1);
  end_worker(1);
  EXPECT_THAT(decisions_.end_reason, HasSubstr("failed before all workers had joined the job"));
}

TEST_F(MembershipTest, AWorkerThatEndsWithoutAskingForARankEndsTheJob) {
  membership_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  start_worker(0);
  start_worker(1);
  end_worker(1, true);
  EXPECT_EQ(decisions_.end_reason, "") << "perhaps the program does not call init()";
  ask_for_rank(0);
  EXPECT_THAT(decisions_.end_reason, HasSubstr("ended before all workers had joined the job"));
}

TEST_F(MembershipTest, AJobWithoutSurvivorsEnds) {
  form_first_epoch({.workers = 2, .workers_min = 1});
  end_worker(1);
  ask_for_rank(0);
  advance_time(seconds(1));
  start_worker(1);
  ask_for_rank(1);
  end_worker(0);
  EXPECT_THAT(decisions_.end_reason, HasSubstr("no worker is left that has the state"));
}

TEST_F(MembershipTest, AShortageEndsTheJobAtTheLimit) {
  form_first_epoch({.workers = 2, .workers_min = 2, .shortage_max = seconds(20)});
  end_worker(1);
  ask_for_rank(0);
  advance_time(seconds(1));
  start_worker(1);  // this worker never asks for a rank
  advance_time(seconds(18));
  EXPECT_EQ(decisions_.end_reason, "");
  advance_time(seconds(1));
  EXPECT_EQ(decisions_.end_reason, "fewer than 2 workers could be found within 20 s");
}

TEST_F(MembershipTest, TheLimitOfResetsEndsTheJob) {
  form_first_epoch({.workers = 3, .workers_min = 1, .resets_max = 1});
  end_worker(2);
  ask_for_rank(0);
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1));
  end_worker(1);
  ask_for_rank(0);
  EXPECT_THAT(formed_workers(), IsEmpty());
  EXPECT_THAT(decisions_.end_reason, HasSubstr("the limit of 1 resets is reached"));
}

TEST_F(MembershipTest, AJobContinuesFromTheLastEpoch) {
  membership_.emplace(Membership::Options{.workers = 4, .workers_min = 1, .resets_max = 8});
  for (const int worker : {0, 1, 2}) membership_->worker_started(worker, now_);
  membership_->worker_ended(2, false, now_);
  membership_->continue_from(
      {.last_epoch = {.number = 7, .workers = {1, 0}}, .running_members = {0, 1}}, now_);
  decide();
  EXPECT_THAT(decisions_.end_reason, IsEmpty());
  EXPECT_TRUE(membership_->is_member(0) && membership_->is_member(1));
  advance_time(seconds(1));
  EXPECT_THAT(decisions_.slots_to_start, ElementsAre(2, 3)) << "slot 3 had no worker";
  ask_for_rank(0, true);
  ask_for_rank(1, true);
  EXPECT_EQ(decisions_.new_epoch->number, 10);
  EXPECT_THAT(formed_workers(), ElementsAre(1, 0));
  ask_for_rank(0, true);
  ask_for_rank(1, true);
  EXPECT_EQ(decisions_.new_epoch->number, 11) << "only two numbers are skipped";
  ask_for_rank(0, true);
  ask_for_rank(1, true);
  EXPECT_THAT(decisions_.end_reason, HasSubstr("the limit of 8 resets"))
      << "there were 6 resets before";
}

TEST_F(MembershipTest, ANewWorkerThatMightHaveBeenAMemberDoesNotBeginAnew) {
  membership_.emplace(Membership::Options{.workers = 2, .workers_min = 1});
  for (const int worker : {0, 1}) membership_->worker_started(worker, now_);
  membership_->continue_from({.last_epoch = {.number = 1, .workers = {0}}, .newest_epoch = 2},
                             now_);
  membership_->rank_wanted(1, 0, 0);
  decide();
  EXPECT_THAT(decisions_.end_reason, IsEmpty());
  end_worker(0);
  EXPECT_THAT(formed_workers(), IsEmpty());
  EXPECT_THAT(decisions_.end_reason, HasSubstr("no worker is left that has the state"));
}

TEST_F(MembershipTest, AMemberOfAnUnknownGroupGetsRank0) {
  membership_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  membership_->worker_started(2, now_);
  membership_->continue_from({.last_epoch = {7, {1, 0}}, .newest_epoch = 8}, now_);
  for (const int worker : {0, 1}) membership_->worker_started(worker, now_);
  for (const int worker : {0, 1}) membership_->rank_wanted(worker, 0, 0);
  membership_->rank_wanted(2, 8, 8);
  decide();
  ASSERT_EQ(formed_workers().size(), 3U);
  EXPECT_EQ(formed_workers()[0], 2) << "only this worker has the state";
}

TEST_F(MembershipTest, WorkersOfAnOlderGroupAreWaitedFor) {
  membership_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) membership_->worker_started(worker, now_);
  membership_->continue_from(
      {.last_epoch = {7, {0}}, .running_members = {0}, .members_of_older_groups = {1}}, now_);
  ask_for_rank(0, true);
  EXPECT_THAT(formed_workers(), IsEmpty()) << "worker 1 may still write to shared memory";
  membership_->rank_wanted(1, 5, 5);
  decide();
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1)) << "worker 2 has not been in a group";
}

TEST_F(MembershipTest, ARequestRevealsANewerEpoch) {
  membership_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
  for (const int worker : {0, 1, 2}) membership_->worker_started(worker, now_);
  membership_->continue_from({.last_epoch = {3, {0, 1}},
                              .running_members = {0, 1},
                              .state_epoch = 3,
                              .lost_launcher_was_first = false},
                             now_);
  membership_->rank_wanted(0, 3, 3);  // worker 0 was not in epoch 5
  membership_->rank_wanted(1, 5, 5);
  decide();
  EXPECT_THAT(formed_workers(), IsEmpty()) << "worker 2 may still be in epoch 5";
  membership_->rank_wanted(2, 5, 5);
  decide();
  EXPECT_EQ(decisions_.new_epoch->number, 8);
  EXPECT_THAT(formed_workers(), ElementsAre(1, 0, 2))
      << "the state of epoch 3 is too old for rank 0";
}

// Three workers run. Workers 0 and 1 were in group 2; worker 2 may have joined in a later group.
class MembershipAfterLoss : public MembershipTest {
 protected:
  void continue_from(std::int64_t newest_epoch, bool lost_launcher_was_first = true) {
    membership_.emplace(Membership::Options{.workers = 3, .workers_min = 1});
    for (const int worker : {0, 1, 2}) membership_->worker_started(worker, now_);
    if (is_leaving_) membership_->slot_leaves(0);
    membership_->continue_from({.last_epoch = {2, {0, 1}},
                                .running_members = {0, 1},
                                .state_epoch = 1,
                                .newest_epoch = newest_epoch,
                                .lost_launcher_was_first = lost_launcher_was_first},
                               now_);
  }
  // The workers ask for ranks after they have left these epochs. Workers 0 and 1 received the state
  // in epoch 1.
  void ask_for_all(std::int64_t left_by_0_and_1, std::int64_t left_by_2) {
    membership_->rank_wanted(2, left_by_2, 0);
    for (const int worker : {0, 1}) membership_->rank_wanted(worker, left_by_0_and_1, 1);
    decide();
  }
  bool has_lost_state() const {
    return decisions_.end_reason.find("no worker is left") != std::string::npos;
  }

  bool is_leaving_ = false;
};

TEST_F(MembershipAfterLoss, AGroupThatSomeMembersNeverLearnedOfLosesNoState) {
  continue_from(2);
  ask_for_all(2, 3);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2))
      << "all workers were in group 3, which has done no step";
  EXPECT_EQ(decisions_.new_epoch->number, 6);
  continue_from(3);
  ask_for_all(2, 0);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2)) << "only the driver has learned of group 3";
  continue_from(4);
  ask_for_all(2, 0);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2)) << "workers 0 and 1 were in groups 3 and 4";
}

TEST_F(MembershipAfterLoss, AWorkerThatLeavesMayHaveAnOldState) {
  is_leaving_ = true;
  continue_from(2);
  for (const int worker : {1, 2}) end_worker(worker);
  membership_->rank_wanted(0, 2, 1);
  decide();
  EXPECT_THAT(formed_workers(), ElementsAre(0)) << "no newer group is known";
  continue_from(3);
  for (const int worker : {1, 2}) end_worker(worker);
  membership_->rank_wanted(0, 2, 1);
  decide();
  EXPECT_TRUE(has_lost_state()) << "the others may have continued without worker 0";
}

TEST_F(MembershipAfterLoss, AnotherLauncherMayHaveContinuedWithoutTheMembers) {
  continue_from(3, false);
  ask_for_all(2, 0);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2))
      << "the same launcher has formed groups 2 and 3";
  continue_from(5, false);
  ask_for_all(2, 0);
  EXPECT_TRUE(has_lost_state()) << "group 5 may have done steps without workers 0 and 1";
  continue_from(2, false);
  ask_for_all(2, 5);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1, 2))
      << "worker 2 has received no state in group 5";
  continue_from(4, false);
  ask_for_all(2, 5);
  EXPECT_TRUE(has_lost_state()) << "group 4 may have done steps without workers 0 and 1";
}

TEST_F(MembershipTest, AfterASuccessNoWorkerJoins) {
  form_first_epoch({.workers = 3, .workers_min = 2});
  end_worker(2);
  ask_for_rank(0);
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), ElementsAre(0, 1));
  advance_time(seconds(1));
  start_worker(2);
  end_worker(0, true);
  EXPECT_THAT(decisions_.superfluous_workers, ElementsAre(2));
  end_worker(2);
  EXPECT_EQ(decisions_.end_reason, "");
  EXPECT_EQ(membership_->deadline(), std::nullopt);
  ask_for_rank(1);
  EXPECT_THAT(formed_workers(), ElementsAre(1))
      << "worker 1 finishes alone, although 2 workers are the minimum";
  end_worker(1, true);
  EXPECT_EQ(decisions_.end_reason, "");
}

}  // namespace
}  // namespace farandole
