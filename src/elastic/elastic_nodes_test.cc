#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "elastic/first_elastic_node.h"
#include "elastic/make_elastic_node.h"
#include "elastic/other_elastic_node.h"
#include "nodes/node_link_in_test.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TimePoint kStart{seconds(1000)};
const NodeLayout kLayout{.node = 0, .workers = {1, 2}};

std::unique_ptr<StoreServer> new_store() { return StoreServer::create("the launcher").value(); }

// Node 0 of a job on two nodes: slot 0 is here, and slots 1 and 2 are on node 1.
class FirstNodeOfElasticJob : public ::testing::Test {
 protected:
  void ask(int number, std::int64_t left) {
    const keys::RankRequest request{.left = left, .state_epoch = left};
    ASSERT_TRUE(store_->set(keys::rank_wanted(number), request.encode()).ok());
  }
  void form_first_group() {
    for (const int number : {0, 1, 2}) ask(number, 0);
    orders_ = node_.advance(now_);
    ASSERT_TRUE(orders_.group_formed);
    link_.told.clear();
  }
  void change(bool is_here) {
    NodeNews news;
    news.changes.push_back({.node = 1, .is_here = is_here, .why = "node 1 (hen) is gone: why"});
    node_.take_news(news, now_);
    orders_ = node_.advance(now_);
  }
  void exit(std::uint32_t slot, bool succeeded) {
    NodeNews news;
    news.exits.push_back({.rank = slot, .how = "worker ended", .succeeded = succeeded});
    node_.take_news(news, now_);
    orders_ = node_.advance(now_);
  }

  TimePoint now_ = kStart;
  std::unique_ptr<StoreServer> store_ = new_store();
  NodeLinkInTest link_;
  FirstElasticNode node_{{.workers = 3, .workers_min = 1}, kLayout, *store_, &link_, now_};
  ElasticOrders orders_;
};

TEST_F(FirstNodeOfElasticJob, AllNodesLearnWhoIsInTheGroup) {
  for (const int number : {0, 1, 2}) ask(number, 0);
  EXPECT_TRUE(node_.advance(now_).group_formed);
  EXPECT_THAT(link_.told,
              ElementsAre(std::pair(-1, NodeMessage(GroupFormed{1, {0, 1, 2}, {0, 1, 2}}))));
}

TEST_F(FirstNodeOfElasticJob, WorkersAreStartedByTheirOwnNode) {
  form_first_group();
  exit(2, false);
  now_ += seconds(1);
  EXPECT_THAT(node_.advance(now_).starts, IsEmpty());
  EXPECT_THAT(link_.told, ElementsAre(std::pair(1, NodeMessage(WorkerStart{2, 3}))));
  node_.worker_ended(0, false, "worker 0 (pid 1) was killed", now_);
  now_ += seconds(1);
  orders_ = node_.advance(now_);
  ASSERT_THAT(orders_.starts, SizeIs(1));
  EXPECT_EQ(orders_.starts[0].local_rank, 0);
  EXPECT_EQ(orders_.starts[0].number, 4);
}

TEST_F(FirstNodeOfElasticJob, TheOthersGoOnWithoutALostNode) {
  form_first_group();
  change(false);
  EXPECT_THAT(orders_.notices, ElementsAre("node 1 (hen) is gone: why"));
  // Its workers may only be stopped. One of them is enough to end the group.
  const MemberLost loss{1, 2};
  EXPECT_EQ(orders_.lost_member, loss);
  EXPECT_THAT(link_.told, Contains(std::pair(-1, NodeMessage(loss))));
  EXPECT_FALSE(node_.advance(now_).lost_member) << "it is returned once";
  EXPECT_FALSE(node_.is_over());
  ask(0, 1);
  orders_ = node_.advance(now_);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_THAT(orders_.notices, ElementsAre("the job goes on with 1 worker"));
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0));
  now_ += seconds(100);
  link_.told.clear();
  (void)node_.advance(now_);
  EXPECT_THAT(link_.told, IsEmpty()) << "nobody can start workers on a lost node";
  change(true);
  EXPECT_THAT(link_.told, ElementsAre(std::pair(1, NodeMessage(WorkerStart{1, 3})),
                                      std::pair(1, NodeMessage(WorkerStart{2, 4}))));
}

TEST_F(FirstNodeOfElasticJob, ANodeThatComesBackAfterTheEndStartsNothing) {
  form_first_group();
  change(false);
  node_.worker_ended(0, true, "worker 0", now_);
  (void)node_.advance(now_);
  link_.told.clear();
  change(true);
  EXPECT_THAT(link_.told, ElementsAre(std::pair(1, NodeMessage(NoMoreWorkers()))));
  EXPECT_TRUE(node_.is_over());
}

TEST_F(FirstNodeOfElasticJob, AStoppedWorkerOfAnotherNodeIsKilledThere) {
  form_first_group();
  NodeNews news;
  news.messages.emplace_back(WorkerStop{2, true});
  node_.take_news(news, now_);
  now_ += seconds(10);
  EXPECT_THAT(node_.advance(now_).notices, ElementsAre("worker 2 is still stopped; killing it"));
  EXPECT_THAT(link_.told, ElementsAre(std::pair(1, NodeMessage(WorkerKill{2, false}))));
}

TEST_F(FirstNodeOfElasticJob, NoMoreWorkersComeWhenOneHasSucceeded) {
  form_first_group();
  exit(1, true);
  EXPECT_THAT(link_.told, Contains(std::pair(1 - 2, NodeMessage(NoMoreWorkers()))));
  EXPECT_FALSE(node_.is_over());
  exit(2, true);
  node_.worker_ended(0, true, "worker 0", now_);
  EXPECT_TRUE(node_.is_over());
}

TEST_F(FirstNodeOfElasticJob, AMemberThatIsLostAtTheEndIsAFailure) {
  form_first_group();
  exit(1, true);
  change(false);
  EXPECT_EQ(orders_.end, "");
  node_.worker_ended(0, true, "worker 0", now_);
  EXPECT_EQ(node_.advance(now_).end,
            "worker 2 is lost with node 1, and no group was formed without it");
}

TEST_F(FirstNodeOfElasticJob, ANewNodeAddsSlots) {
  form_first_group();
  link_.start = Start{.workers = {1, 2, 1}};
  NodeNews news;
  news.changes.push_back({.node = 2, .is_here = true});
  node_.take_news(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, ElementsAre("node 2 takes part"));
  EXPECT_THAT(link_.told, ElementsAre(std::pair(2, NodeMessage(WorkerStart{3, 3}))));
}

TEST_F(FirstNodeOfElasticJob, ANodeLeavesAtTheNextChange) {
  form_first_group();
  NodeNews news;
  news.messages.emplace_back(NodeLeaves{1});
  node_.take_news(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, ElementsAre("node 1 leaves at the next commit"));
  for (const int number : {0, 1, 2}) ask(number, 1);
  EXPECT_TRUE(node_.advance(now_).group_formed);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0));
  EXPECT_THAT(link_.told, ElementsAre(std::pair(-1, NodeMessage(GroupFormed{2, {0}, {0}, 1})),
                                      std::pair(1, NodeMessage(WorkerKill{1, true})),
                                      std::pair(1, NodeMessage(WorkerKill{2, true}))));
  exit(1, false);
  exit(2, false);
  change(false);
  EXPECT_THAT(orders_.notices, ElementsAre("node 1 has left"));
}

TEST_F(FirstNodeOfElasticJob, Node0CannotLeave) {
  form_first_group();
  EXPECT_FALSE(node_.leave(now_));
  NodeNews news;
  news.messages.emplace_back(NodeLeaves{0});
  news.messages.emplace_back(NodeLeaves{7});
  node_.take_news(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, IsEmpty());
}

TEST_F(FirstNodeOfElasticJob, ExitsOfUnknownWorkersAreIgnored) {
  form_first_group();
  exit(7, false);
  exit(0, false);  // slot 0 is not on another node
  EXPECT_FALSE(node_.is_over());
  EXPECT_TRUE(node_.matters(0));
}

TEST_F(FirstNodeOfElasticJob, RanksAndSlotsMayDiffer) {
  EXPECT_EQ(node_.rank_of(2), 2) << "it never had a rank";
  form_first_group();
  node_.worker_ended(0, false, "worker 0", now_);
  ask(1, 1);
  ask(2, 1);
  (void)node_.advance(now_);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(2, 1));
  EXPECT_EQ(node_.rank_of(2), 0);
  WorkerEnd end;
  end.record.blamed_rank = 0;
  node_.use_slots(end);
  EXPECT_EQ(end.record.blamed_rank, 2);
  end.record.blamed_rank = 7;
  node_.use_slots(end);
  EXPECT_EQ(end.record.blamed_rank, std::nullopt);
}

// Node 1 of the same job.
// A launcher that has taken the place of a lost one of node 0, which has no workers. Slots 0 and 1
// are on node 1, and slots 2 and 3 on node 2.
class NewLauncherOfNode0 : public ::testing::Test {
 protected:
  explicit NewLauncherOfNode0(std::uint32_t number = 1, std::uint32_t epoch = 3)
      : number_(number), epoch_(epoch) {}
  void come_back(int node, const NodeState& state) {
    NodeNews news;
    news.changes.push_back({.node = node, .is_here = true, .has_begun = true});
    node_.take_news(news, now_);
    NodeNews with_state;
    with_state.messages.emplace_back(state);
    node_.take_news(with_state, now_);
  }
  void expect_nobody() {
    NodeNews news;
    news.nobody_is_expected = true;
    node_.take_news(news, now_);
    orders_ = node_.advance(now_);
  }
  void exit(std::uint32_t slot, bool succeeded) {
    NodeNews news;
    news.exits.push_back({.rank = slot, .how = "worker ended", .succeeded = succeeded});
    node_.take_news(news, now_);
    orders_ = node_.advance(now_);
  }
  void ask(int number, std::int64_t left, bool has_state) {
    const keys::RankRequest request{.left = left, .state_epoch = has_state ? left : 0};
    ASSERT_TRUE(store_->set(keys::rank_wanted(number), request.encode()).ok());
    orders_ = node_.advance(now_);
  }

  std::uint32_t number_;  // of the launchers that were lost
  std::uint32_t epoch_;   // that the driver knows
  TimePoint now_ = kStart;
  std::unique_ptr<StoreServer> store_ = new_store();
  NodeLinkInTest link_;
  FirstElasticNode node_{
      {.workers = 4, .workers_min = 1},
      NodeLayout{.node = 0, .workers = {0, 2, 2}},
      *store_,
      &link_,
      now_,
      Replacement{.number = number_, .epoch = epoch_, .workers = {0, 2, 2}, .nodes = {1, 2}}};
  ElasticOrders orders_;
};

const GroupFormed kLastGroup{3, {2, 0, 1}, {2, 9, 1}, 2};

TEST_F(NewLauncherOfNode0, FindsTheGroupAndItsWorkers) {
  come_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  EXPECT_FALSE(node_.is_over()) << "it still waits";
  EXPECT_FALSE(node_.deadline().has_value());
  come_back(2, {.node = 2, .group = {2, {2}, {2}}, .slots = {2, 3}, .numbers = {2, 8}});
  expect_nobody();
  EXPECT_THAT(
      orders_.notices,
      ElementsAre("node 0 has a new launcher, which has found 3 workers of the last group"));
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(2, 0, 1));
  EXPECT_FALSE(orders_.lost_member);
  EXPECT_TRUE(node_.matters(2) && !node_.matters(3)) << "slot 3 has a new worker";
  ask(9, 3, true);
  ask(1, 3, true);
  EXPECT_FALSE(orders_.group_formed);
  ask(2, 3, true);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_EQ(node_.epoch(), 6) << "the lost launcher may have begun to form group 4";
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(2, 0, 1));
}

TEST_F(NewLauncherOfNode0, WaitsForTheStateOfNodesThatAreBack) {
  NodeNews news;
  news.changes.push_back({.node = 1, .is_here = true, .has_begun = true});
  news.nobody_is_expected = true;
  node_.take_news(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, IsEmpty());
  NodeNews lost;
  lost.changes.push_back({.node = 1, .is_here = false, .why = "gone"});
  node_.take_news(lost, now_);
  EXPECT_THAT(node_.advance(now_).end, HasSubstr("no worker is left that has the state"));
}

TEST_F(NewLauncherOfNode0, WorkersThatEndMeanwhileAreNotMembers) {
  come_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  NodeNews news;
  news.exits.push_back({.rank = 1, .how = "worker 1", .succeeded = false});
  node_.take_news(news, now_);
  expect_nobody();
  EXPECT_THAT(orders_.end, IsEmpty()) << "an early failure is not one of the start";
  EXPECT_EQ(orders_.lost_member->epoch, 3U) << "node 2 was lost meanwhile";
  EXPECT_THAT(link_.told, Contains(std::pair(-1, NodeMessage(MemberLost{3, 0}))));
  ask(9, 3, true);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0));
}

TEST_F(NewLauncherOfNode0, AMemberThatWasLostAtTheEndIsAFailure) {
  come_back(
      1,
      {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}, .is_finishing = true});
  expect_nobody();
  exit(0, true);
  exit(1, true);
  EXPECT_EQ(orders_.end, "worker 2 is lost with its node, and no group was formed without it");
}

TEST_F(NewLauncherOfNode0, AMemberWhoseNodeIsThereMayHaveSucceeded) {
  come_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  come_back(2, {.node = 2, .group = kLastGroup, .is_finishing = true});
  expect_nobody();
  exit(0, true);
  exit(1, true);
  EXPECT_EQ(orders_.end, "");
}

TEST_F(NewLauncherOfNode0, WaitsForWorkersOfAnOlderGroup) {
  come_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  come_back(2, {.node = 2, .group = {2, {2, 3}, {2, 3}, 1}, .slots = {3}, .numbers = {3}});
  expect_nobody();
  ask(9, 3, true);
  ask(1, 3, true);
  EXPECT_FALSE(orders_.group_formed) << "worker 3 may still be in group 2";
  ask(3, 2, true);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0, 3, 1));
}

TEST_F(NewLauncherOfNode0, WorkersOfAnOlderGroupCannotGiveTheirState) {
  // The driver knows epoch 3, whose members are all lost. Node 2 may have left before it.
  come_back(2, {.node = 2,
                .group = {2, {2, 3}, {2, 3}, 1},
                .slots = {2},
                .numbers = {2},
                .is_leaving = true});
  expect_nobody();
  ask(2, 2, true);
  EXPECT_FALSE(orders_.group_formed);
  EXPECT_THAT(orders_.end, HasSubstr("no worker is left that has the state of the training"));
}

TEST_F(NewLauncherOfNode0, AGroupOfWhichNoNodeHasHeardLosesNothing) {
  come_back(2, {.node = 2, .group = {2, {2, 3}, {2, 3}, 1}, .slots = {2}, .numbers = {2}});
  expect_nobody();
  ask(2, 2, true);
  EXPECT_TRUE(orders_.group_formed) << orders_.end;
  EXPECT_EQ(node_.epoch(), 6);
}

class SecondNewLauncherOfNode0 : public NewLauncherOfNode0 {
 protected:
  SecondNewLauncherOfNode0() : NewLauncherOfNode0(2, 5) {}
};

TEST_F(SecondNewLauncherOfNode0, TheFirstOneMayHaveGoneOnWithoutANode) {
  come_back(2, {.node = 2, .group = {2, {2, 3}, {2, 3}, 1}, .slots = {2}, .numbers = {2}});
  expect_nobody();
  ask(2, 2, true);
  EXPECT_THAT(orders_.end, HasSubstr("no worker is left that has the state of the training"));
}

TEST_F(NewLauncherOfNode0, AMemberWithoutTheStateDoesNotBeginAnew) {
  come_back(1, {.node = 1, .group = kLastGroup, .slots = {0}, .numbers = {9}});
  expect_nobody();
  ask(9, 3, false);
  EXPECT_THAT(orders_.end, HasSubstr("no worker is left that has the state of the training"));
}

TEST_F(NewLauncherOfNode0, StopsLeavesAndTheEndAreKnown) {
  come_back(1, {.node = 1,
                .group = kLastGroup,
                .slots = {0, 1},
                .numbers = {9, 1},
                .stopped_slots = {1},
                .is_leaving = true});
  come_back(2,
            {.node = 2, .group = kLastGroup, .slots = {2}, .numbers = {2}, .is_finishing = true});
  expect_nobody();
  EXPECT_THAT(orders_.notices, Contains("node 1 leaves at the next commit"));
  EXPECT_THAT(link_.told, Contains(std::pair(-1, NodeMessage(NoMoreWorkers()))));
  now_ += seconds(11);
  EXPECT_THAT(node_.advance(now_).notices, Contains("worker 1 is still stopped; killing it"));
}

TEST_F(NewLauncherOfNode0, NumbersAreNeverUsedAgain) {
  come_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  expect_nobody();
  NodeNews news;
  news.exits.push_back({.rank = 1, .how = "worker 1", .succeeded = false});
  node_.take_news(news, now_);
  now_ += seconds(1);
  (void)node_.advance(now_);
  EXPECT_THAT(link_.told, Contains(std::pair(1, NodeMessage(WorkerStart{1, 1U << 20U}))));
}

class OtherNodeOfElasticJob : public ::testing::Test {
 protected:
  void take(const NodeMessage& message) {
    NodeNews news;
    news.messages.push_back(message);
    node_.take_news(news, kStart);
  }
  std::optional<std::string> result_of_formation(std::int64_t epoch) const {
    return store_->text_at(keys::epoch_prefix(epoch) + keys::complete(keys::kFirstEpoch));
  }

  NodeLayout layout_{.node = 1, .workers = {1, 2}};
  std::unique_ptr<StoreServer> store_ = new_store();
  NodeLinkInTest link_;
  OtherElasticNode node_{layout_, *store_, link_, false};
};

TEST_F(OtherNodeOfElasticJob, CarriesOutOrders) {
  node_.worker_ended(0, false, "worker 1", kStart);
  take(WorkerStart{1, 3});
  take(WorkerStart{2, 4});  // it still runs
  take(WorkerStart{0, 5});  // it is of node 0
  take(WorkerKill{2, true});
  take(WorkerKill{1, false});  // it has ended
  const ElasticOrders orders = node_.advance(kStart);
  ASSERT_THAT(orders.starts, SizeIs(1));
  EXPECT_EQ(orders.starts[0].local_rank, 0);
  EXPECT_EQ(orders.starts[0].number, 3);
  EXPECT_THAT(orders.kills, ElementsAre(1));
  EXPECT_TRUE(node_.is_superfluous(1));
  EXPECT_FALSE(node_.matters(1));
  EXPECT_THAT(node_.advance(kStart).starts, IsEmpty()) << "each order is returned once";
}

TEST_F(OtherNodeOfElasticJob, LearnsWhichMembersAreLost) {
  const MemberLost loss{1, 0};
  take(loss);
  EXPECT_EQ(node_.advance(kStart).lost_member, loss);
  EXPECT_FALSE(node_.advance(kStart).lost_member);
}

TEST_F(OtherNodeOfElasticJob, TellsANewLauncherOfNode0WhatItKnows) {
  take(GroupFormed{4, {1, 0}, {1, 0}, 3});
  node_.worker_stopped(1, kStart);
  NodeNews news;
  news.node_0_is_back = true;
  link_.told.clear();
  node_.take_news(news, kStart);
  NodeState known{.node = 1,
                  .group = {4, {1, 0}, {1, 0}, 3},
                  .slots = {1, 2},
                  .numbers = {1, 2},
                  .stopped_slots = {2}};
  EXPECT_THAT(link_.told, ElementsAre(std::pair(-1, NodeMessage(known))));
  node_.worker_ended(0, true, "worker 1", kStart);
  (void)node_.leave(kStart + seconds(9));
  link_.told.clear();
  node_.take_news(news, kStart);
  known.slots = known.numbers = {2};
  known.is_finishing = known.is_leaving = true;
  EXPECT_THAT(link_.told, ElementsAre(std::pair(-1, NodeMessage(known))));
}

TEST_F(OtherNodeOfElasticJob, OnlyMembersMatterWhenThereIsAGroup) {
  EXPECT_TRUE(node_.matters(0));
  take(GroupFormed{1, {0, 2}, {0, 2}});
  EXPECT_TRUE(node_.advance(kStart).group_formed);
  EXPECT_FALSE(node_.matters(0));
  EXPECT_TRUE(node_.matters(1));
  EXPECT_EQ(node_.rank_of(2), 1);
}

TEST_F(OtherNodeOfElasticJob, AMemberThatEndsFailsTheFormation) {
  take(GroupFormed{1, {0, 1, 2}, {0, 1, 2}});
  node_.worker_ended(0, false, "worker 1 (pid 9) was killed", kStart);
  EXPECT_THAT(result_of_formation(1).value(), HasSubstr("worker 1 (pid 9) was killed"));
}

TEST_F(OtherNodeOfElasticJob, AMemberThatEndedBeforeTheGroupWasKnownFailsTheFormation) {
  node_.worker_ended(1, false, "worker 2 (pid 9) was killed", kStart);
  EXPECT_FALSE(result_of_formation(1).has_value());
  take(GroupFormed{1, {0, 1, 2}, {0, 1, 2}});
  EXPECT_THAT(result_of_formation(1).value(), HasSubstr("worker 2 (pid 9) was killed"));
  take(GroupFormed{2, {0, 1}, {0, 1}});
  EXPECT_FALSE(result_of_formation(1).has_value()) << "the keys of the last epoch are removed";
  EXPECT_FALSE(result_of_formation(2).has_value());
}

TEST_F(OtherNodeOfElasticJob, TellsNode0AboutStops) {
  node_.worker_stopped(1, kStart);
  node_.worker_continued(1);
  EXPECT_THAT(link_.told, ElementsAre(std::pair(-1, NodeMessage(WorkerStop{2, true})),
                                      std::pair(-1, NodeMessage(WorkerStop{2, false}))));
}

TEST_F(OtherNodeOfElasticJob, LeavesWhenItsWorkersHaveEnded) {
  EXPECT_TRUE(node_.leave(kStart + seconds(30)));
  EXPECT_FALSE(node_.leave(kStart + seconds(40))) << "it is leaving already";
  EXPECT_THAT(link_.told, ElementsAre(std::pair(-1, NodeMessage(NodeLeaves{1}))));
  EXPECT_EQ(node_.deadline(), kStart + seconds(30));
  EXPECT_FALSE(node_.advance(kStart).must_leave);
  EXPECT_TRUE(node_.advance(kStart + seconds(30)).must_leave);
  EXPECT_FALSE(node_.advance(kStart + seconds(31)).must_leave) << "it is told once";
  EXPECT_FALSE(node_.deadline().has_value());
  EXPECT_FALSE(node_.is_over());
  for (const int local_rank : {0, 1}) node_.worker_ended(local_rank, false, "worker", kStart);
  EXPECT_TRUE(node_.is_over());
  EXPECT_TRUE(node_.leaves_job());
}

TEST_F(OtherNodeOfElasticJob, EndsWhenNoMoreWorkersCome) {
  EXPECT_FALSE(node_.is_over());
  take(NoMoreWorkers());
  EXPECT_TRUE(node_.is_over());
}

TEST(MakeElasticNode, ANodeThatComesBackWaitsForOrders) {
  const auto store = new_store();
  NodeLinkInTest link;
  link.start = Start{.workers = {1, 2}, .has_begun = true};
  const auto node =
      make_elastic_node({}, {.node = 1, .workers = {1, 2}}, *store, &link, kStart, {});
  ASSERT_TRUE(node.ok());
  NodeNews news;
  news.messages.emplace_back(WorkerStart{1, 3});
  (*node)->take_news(news, kStart);
  EXPECT_THAT((*node)->advance(kStart).starts, SizeIs(1));
  EXPECT_FALSE((*node)->matters(0)) << "the others have a group without it";
  NodeNews formed;
  formed.messages.emplace_back(GroupFormed{2, {0, 1}, {0, 3}});
  (*node)->take_news(formed, kStart);
  EXPECT_TRUE((*node)->matters(0));
}

TEST(MakeElasticNode, TheMinimumIsAtMostTheNumberOfWorkers) {
  const auto store = new_store();
  const auto node = make_elastic_node({.workers_min = 4}, kLayout, *store, nullptr, kStart, {});
  EXPECT_EQ(node.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(node.status().message(), HasSubstr("--min-workers is 4, but the job has 3 workers"));
}

}  // namespace
}  // namespace farandole
