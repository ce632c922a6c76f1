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

// Node 0 of a job on two nodes: slot 0 is on node 0, and slots 1 and 2 are on node 1.
class FirstNodeOfElasticJob : public ::testing::Test {
 protected:
  void ask_for_rank(int number, std::int64_t left) {
    const keys::RankRequest request{.left_epoch = left, .state_epoch = left};
    ASSERT_TRUE(store_->set(keys::rank_wanted(number), request.encode()).ok());
  }
  void form_first_group() {
    for (const int number : {0, 1, 2}) ask_for_rank(number, 0);
    orders_ = node_.advance(now_);
    ASSERT_TRUE(orders_.group_formed);
    link_.sent_messages.clear();
  }
  void change_node_1(bool is_present) {
    NodeEvents news;
    news.changes.push_back(
        {.node = 1, .is_present = is_present, .why = "node 1 (hen) is gone: why"});
    node_.handle_events(news, now_);
    orders_ = node_.advance(now_);
  }
  void report_exit(std::uint32_t slot, bool succeeded) {
    NodeEvents news;
    news.exits.push_back({.rank = slot, .how_it_ended = "worker ended", .succeeded = succeeded});
    node_.handle_events(news, now_);
    orders_ = node_.advance(now_);
  }

  TimePoint now_ = kStart;
  std::unique_ptr<StoreServer> store_ = new_store();
  NodeLinkInTest link_;
  FirstElasticNode node_{{.workers = 3, .workers_min = 1}, kLayout, *store_, &link_, now_};
  ElasticOrders orders_;
};

TEST_F(FirstNodeOfElasticJob, AllNodesLearnWhoIsInTheGroup) {
  for (const int number : {0, 1, 2}) ask_for_rank(number, 0);
  EXPECT_TRUE(node_.advance(now_).group_formed);
  EXPECT_THAT(link_.sent_messages,
              ElementsAre(std::pair(-1, NodeMessage(GroupFormed{1, {0, 1, 2}, {0, 1, 2}}))));
}

TEST_F(FirstNodeOfElasticJob, WorkersAreStartedByTheirOwnNode) {
  form_first_group();
  report_exit(2, false);
  now_ += seconds(1);
  EXPECT_THAT(node_.advance(now_).starts, IsEmpty());
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(1, NodeMessage(WorkerStart{2, 3}))));
  node_.worker_ended(0, false, "worker 0 (pid 1) was killed", now_);
  now_ += seconds(1);
  orders_ = node_.advance(now_);
  ASSERT_THAT(orders_.starts, SizeIs(1));
  EXPECT_EQ(orders_.starts[0].local_rank, 0);
  EXPECT_EQ(orders_.starts[0].number, 4);
}

TEST_F(FirstNodeOfElasticJob, TheOtherNodesContinueWithoutALostNode) {
  form_first_group();
  change_node_1(false);
  EXPECT_THAT(orders_.notices, ElementsAre("node 1 (hen) is gone: why"));
  // Perhaps the workers of node 1 are only stopped, so the other workers must be told to leave. It
  // is enough to name one lost member.
  const MemberLost lost_member{1, 2};
  EXPECT_EQ(orders_.lost_member, lost_member);
  EXPECT_THAT(link_.sent_messages, Contains(std::pair(-1, NodeMessage(lost_member))));
  EXPECT_FALSE(node_.advance(now_).lost_member) << "the loss is returned once";
  EXPECT_FALSE(node_.is_over());
  ask_for_rank(0, 1);
  orders_ = node_.advance(now_);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_THAT(orders_.notices, ElementsAre("the job goes on with 1 worker"));
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0));
  now_ += seconds(100);
  link_.sent_messages.clear();
  (void)node_.advance(now_);
  EXPECT_THAT(link_.sent_messages, IsEmpty()) << "a lost node cannot start workers";
  change_node_1(true);
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(1, NodeMessage(WorkerStart{1, 3})),
                                               std::pair(1, NodeMessage(WorkerStart{2, 4}))));
}

TEST_F(FirstNodeOfElasticJob, ANodeThatComesBackAfterTheEndStartsNothing) {
  form_first_group();
  change_node_1(false);
  node_.worker_ended(0, true, "worker 0", now_);
  (void)node_.advance(now_);
  link_.sent_messages.clear();
  change_node_1(true);
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(1, NodeMessage(NoMoreWorkers()))));
  EXPECT_TRUE(node_.is_over());
}

TEST_F(FirstNodeOfElasticJob, AStoppedWorkerOfAnotherNodeIsKilledThere) {
  form_first_group();
  NodeEvents news;
  news.messages.emplace_back(WorkerStop{2, true});
  node_.handle_events(news, now_);
  now_ += seconds(10);
  EXPECT_THAT(node_.advance(now_).notices, ElementsAre("worker 2 is still stopped; killing it"));
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(1, NodeMessage(WorkerKill{2, false}))));
}

TEST_F(FirstNodeOfElasticJob, NoMoreWorkersComeWhenOneHasSucceeded) {
  form_first_group();
  report_exit(1, true);
  EXPECT_THAT(link_.sent_messages, Contains(std::pair(-1, NodeMessage(NoMoreWorkers()))));
  EXPECT_FALSE(node_.is_over());
  report_exit(2, true);
  node_.worker_ended(0, true, "worker 0", now_);
  EXPECT_TRUE(node_.is_over());
}

TEST_F(FirstNodeOfElasticJob, AMemberThatIsLostAtTheEndIsAFailure) {
  form_first_group();
  report_exit(1, true);
  change_node_1(false);
  EXPECT_EQ(orders_.end, "");
  node_.worker_ended(0, true, "worker 0", now_);
  EXPECT_EQ(node_.advance(now_).end,
            "worker 2 is lost with node 1, and no group was formed without it");
}

TEST_F(FirstNodeOfElasticJob, ANewNodeAddsSlots) {
  form_first_group();
  link_.start = Start{.workers = {1, 2, 1}};
  NodeEvents news;
  news.changes.push_back({.node = 2, .is_present = true});
  node_.handle_events(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, ElementsAre("node 2 takes part"));
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(2, NodeMessage(WorkerStart{3, 3}))));
}

TEST_F(FirstNodeOfElasticJob, ANodeLeavesAtTheNextChange) {
  form_first_group();
  NodeEvents news;
  news.messages.emplace_back(NodeLeaves{1});
  node_.handle_events(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, ElementsAre("node 1 leaves at the next commit"));
  for (const int number : {0, 1, 2}) ask_for_rank(number, 1);
  EXPECT_TRUE(node_.advance(now_).group_formed);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0));
  EXPECT_THAT(link_.sent_messages,
              ElementsAre(std::pair(-1, NodeMessage(GroupFormed{2, {0}, {0}, 1})),
                          std::pair(1, NodeMessage(WorkerKill{1, true})),
                          std::pair(1, NodeMessage(WorkerKill{2, true}))));
  report_exit(1, false);
  report_exit(2, false);
  change_node_1(false);
  EXPECT_THAT(orders_.notices, ElementsAre("node 1 has left"));
}

TEST_F(FirstNodeOfElasticJob, Node0CannotLeave) {
  form_first_group();
  EXPECT_FALSE(node_.begin_to_leave(now_));
  NodeEvents news;
  news.messages.emplace_back(NodeLeaves{0});
  news.messages.emplace_back(NodeLeaves{7});
  node_.handle_events(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, IsEmpty());
}

TEST_F(FirstNodeOfElasticJob, ExitsOfUnknownWorkersAreIgnored) {
  form_first_group();
  report_exit(7, false);
  report_exit(0, false);  // slot 0 is not on another node
  EXPECT_FALSE(node_.is_over());
  EXPECT_TRUE(node_.is_needed(0));
}

TEST_F(FirstNodeOfElasticJob, RanksAndSlotsMayDiffer) {
  EXPECT_EQ(node_.rank_of(2), 2) << "slot 2 never had a rank";
  form_first_group();
  node_.worker_ended(0, false, "worker 0", now_);
  ask_for_rank(1, 1);
  ask_for_rank(2, 1);
  (void)node_.advance(now_);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(2, 1));
  EXPECT_EQ(node_.rank_of(2), 0);
  WorkerEnd end;
  end.record.blamed_rank = 0;
  node_.replace_rank_by_slot(end);
  EXPECT_EQ(end.record.blamed_rank, 2);
  end.record.blamed_rank = 7;
  node_.replace_rank_by_slot(end);
  EXPECT_EQ(end.record.blamed_rank, std::nullopt);
}

// A new launcher of node 0, which replaces a lost one. Node 0 has no workers; slots 0 and 1 are on
// node 1, and slots 2 and 3 are on node 2.
class NewLauncherOfNode0 : public ::testing::Test {
 protected:
  explicit NewLauncherOfNode0(std::uint32_t number = 1, std::uint32_t epoch = 3)
      : lost_launchers_(number), driver_epoch_(epoch) {}
  void bring_node_back(int node, const NodeState& state) {
    NodeEvents news;
    news.changes.push_back({.node = node, .is_present = true, .has_begun = true});
    node_.handle_events(news, now_);
    NodeEvents state_news;
    state_news.messages.emplace_back(state);
    node_.handle_events(state_news, now_);
  }
  void stop_expecting_nodes() {
    NodeEvents news;
    news.no_more_nodes_expected = true;
    node_.handle_events(news, now_);
    orders_ = node_.advance(now_);
  }
  void report_exit(std::uint32_t slot, bool succeeded) {
    NodeEvents news;
    news.exits.push_back({.rank = slot, .how_it_ended = "worker ended", .succeeded = succeeded});
    node_.handle_events(news, now_);
    orders_ = node_.advance(now_);
  }
  void ask_for_rank(int number, std::int64_t left, bool has_state) {
    const keys::RankRequest request{.left_epoch = left, .state_epoch = has_state ? left : 0};
    ASSERT_TRUE(store_->set(keys::rank_wanted(number), request.encode()).ok());
    orders_ = node_.advance(now_);
  }

  std::uint32_t lost_launchers_;  // how many launchers of node 0 were lost
  std::uint32_t driver_epoch_;    // the newest epoch that the driver knows
  TimePoint now_ = kStart;
  std::unique_ptr<StoreServer> store_ = new_store();
  NodeLinkInTest link_;
  FirstElasticNode node_{{.workers = 4, .workers_min = 1},
                         NodeLayout{.node = 0, .workers = {0, 2, 2}},
                         *store_,
                         &link_,
                         now_,
                         Replacement{.number = lost_launchers_,
                                     .epoch = driver_epoch_,
                                     .workers = {0, 2, 2},
                                     .nodes = {1, 2}}};
  ElasticOrders orders_;
};

const GroupFormed kLastGroup{3, {2, 0, 1}, {2, 9, 1}, 2};

TEST_F(NewLauncherOfNode0, FindsTheGroupAndItsWorkers) {
  bring_node_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  EXPECT_FALSE(node_.is_over()) << "it still waits for node 2";
  EXPECT_FALSE(node_.deadline().has_value());
  bring_node_back(2, {.node = 2, .group = {2, {2}, {2}}, .slots = {2, 3}, .numbers = {2, 8}});
  stop_expecting_nodes();
  EXPECT_THAT(
      orders_.notices,
      ElementsAre("node 0 has a new launcher, which has found 3 workers of the last group"));
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(2, 0, 1));
  EXPECT_FALSE(orders_.lost_member);
  EXPECT_TRUE(node_.is_needed(2) && !node_.is_needed(3)) << "slot 3 has a new worker";
  ask_for_rank(9, 3, true);
  ask_for_rank(1, 3, true);
  EXPECT_FALSE(orders_.group_formed);
  ask_for_rank(2, 3, true);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_EQ(node_.epoch(), 6) << "the lost launcher may have begun to form group 4";
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(2, 0, 1));
}

TEST_F(NewLauncherOfNode0, WaitsForTheStateOfNodesThatAreBack) {
  NodeEvents news;
  news.changes.push_back({.node = 1, .is_present = true, .has_begun = true});
  news.no_more_nodes_expected = true;
  node_.handle_events(news, now_);
  EXPECT_THAT(node_.advance(now_).notices, IsEmpty());
  NodeEvents loss_news;
  loss_news.changes.push_back({.node = 1, .is_present = false, .why = "gone"});
  node_.handle_events(loss_news, now_);
  EXPECT_THAT(node_.advance(now_).end, HasSubstr("no worker is left that has the state"));
}

TEST_F(NewLauncherOfNode0, WorkersThatEndMeanwhileAreNotMembers) {
  bring_node_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  NodeEvents news;
  news.exits.push_back({.rank = 1, .how_it_ended = "worker 1", .succeeded = false});
  node_.handle_events(news, now_);
  stop_expecting_nodes();
  EXPECT_THAT(orders_.end, IsEmpty()) << "worker 1 has not failed at the start of the job";
  EXPECT_EQ(orders_.lost_member->epoch, 3U) << "node 2 was lost meanwhile";
  EXPECT_THAT(link_.sent_messages, Contains(std::pair(-1, NodeMessage(MemberLost{3, 0}))));
  ask_for_rank(9, 3, true);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0));
}

TEST_F(NewLauncherOfNode0, AMemberThatWasLostAtTheEndIsAFailure) {
  bring_node_back(
      1,
      {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}, .is_finishing = true});
  stop_expecting_nodes();
  report_exit(0, true);
  report_exit(1, true);
  EXPECT_EQ(orders_.end, "worker 2 is lost with its node, and no group was formed without it");
}

TEST_F(NewLauncherOfNode0, AMemberWithAConnectedNodeMayHaveSucceeded) {
  bring_node_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  bring_node_back(2, {.node = 2, .group = kLastGroup, .is_finishing = true});
  stop_expecting_nodes();
  report_exit(0, true);
  report_exit(1, true);
  EXPECT_EQ(orders_.end, "");
}

TEST_F(NewLauncherOfNode0, WaitsForWorkersOfAnOlderGroup) {
  bring_node_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  bring_node_back(2, {.node = 2, .group = {2, {2, 3}, {2, 3}, 1}, .slots = {3}, .numbers = {3}});
  stop_expecting_nodes();
  ask_for_rank(9, 3, true);
  ask_for_rank(1, 3, true);
  EXPECT_FALSE(orders_.group_formed) << "worker 3 may still be in group 2";
  ask_for_rank(3, 2, true);
  EXPECT_TRUE(orders_.group_formed);
  EXPECT_THAT(node_.slots_by_rank(), ElementsAre(0, 3, 1));
}

TEST_F(NewLauncherOfNode0, WorkersOfAnOlderGroupCannotGiveTheirState) {
  // The driver knows epoch 3. All members of that epoch are lost, and node 2 may have left the job
  // before epoch 3.
  bring_node_back(2, {.node = 2,
                      .group = {2, {2, 3}, {2, 3}, 1},
                      .slots = {2},
                      .numbers = {2},
                      .is_leaving = true});
  stop_expecting_nodes();
  ask_for_rank(2, 2, true);
  EXPECT_FALSE(orders_.group_formed);
  EXPECT_THAT(orders_.end, HasSubstr("no worker is left that has the state of the training"));
}

TEST_F(NewLauncherOfNode0, AGroupThatReachedNoNodeLosesNoState) {
  bring_node_back(2, {.node = 2, .group = {2, {2, 3}, {2, 3}, 1}, .slots = {2}, .numbers = {2}});
  stop_expecting_nodes();
  ask_for_rank(2, 2, true);
  EXPECT_TRUE(orders_.group_formed) << orders_.end;
  EXPECT_EQ(node_.epoch(), 6);
}

class SecondNewLauncherOfNode0 : public NewLauncherOfNode0 {
 protected:
  SecondNewLauncherOfNode0() : NewLauncherOfNode0(2, 5) {}
};

TEST_F(SecondNewLauncherOfNode0, TheFirstReplacementMayHaveContinuedWithoutANode) {
  bring_node_back(2, {.node = 2, .group = {2, {2, 3}, {2, 3}, 1}, .slots = {2}, .numbers = {2}});
  stop_expecting_nodes();
  ask_for_rank(2, 2, true);
  EXPECT_THAT(orders_.end, HasSubstr("no worker is left that has the state of the training"));
}

TEST_F(NewLauncherOfNode0, AMemberWithoutTheStateDoesNotRestartTheTraining) {
  bring_node_back(1, {.node = 1, .group = kLastGroup, .slots = {0}, .numbers = {9}});
  stop_expecting_nodes();
  ask_for_rank(9, 3, false);
  EXPECT_THAT(orders_.end, HasSubstr("no worker is left that has the state of the training"));
}

TEST_F(NewLauncherOfNode0, LearnsAboutStoppedWorkersLeavingNodesAndTheEnd) {
  bring_node_back(1, {.node = 1,
                      .group = kLastGroup,
                      .slots = {0, 1},
                      .numbers = {9, 1},
                      .stopped_slots = {1},
                      .is_leaving = true});
  bring_node_back(
      2, {.node = 2, .group = kLastGroup, .slots = {2}, .numbers = {2}, .is_finishing = true});
  stop_expecting_nodes();
  EXPECT_THAT(orders_.notices, Contains("node 1 leaves at the next commit"));
  EXPECT_THAT(link_.sent_messages, Contains(std::pair(-1, NodeMessage(NoMoreWorkers()))));
  now_ += seconds(11);
  EXPECT_THAT(node_.advance(now_).notices, Contains("worker 1 is still stopped; killing it"));
}

TEST_F(NewLauncherOfNode0, NumbersAreNeverUsedAgain) {
  bring_node_back(1, {.node = 1, .group = kLastGroup, .slots = {0, 1}, .numbers = {9, 1}});
  stop_expecting_nodes();
  NodeEvents news;
  news.exits.push_back({.rank = 1, .how_it_ended = "worker 1", .succeeded = false});
  node_.handle_events(news, now_);
  now_ += seconds(1);
  (void)node_.advance(now_);
  EXPECT_THAT(link_.sent_messages, Contains(std::pair(1, NodeMessage(WorkerStart{1, 1U << 20U}))));
}

class OtherNodeOfElasticJob : public ::testing::Test {
 protected:
  void deliver(const NodeMessage& message) {
    NodeEvents news;
    news.messages.push_back(message);
    node_.handle_events(news, kStart);
  }
  std::optional<std::string> formation_failure(std::int64_t epoch) const {
    return store_->text_at(keys::epoch_prefix(epoch) + keys::complete(keys::kFirstEpoch));
  }

  NodeLayout layout_{.node = 1, .workers = {1, 2}};
  std::unique_ptr<StoreServer> store_ = new_store();
  NodeLinkInTest link_;
  OtherElasticNode node_{layout_, *store_, link_, false};
};

TEST_F(OtherNodeOfElasticJob, CarriesOutOrders) {
  node_.worker_ended(0, false, "worker 1", kStart);
  deliver(WorkerStart{1, 3});
  deliver(WorkerStart{2, 4});  // slot 2 still has a worker
  deliver(WorkerStart{0, 5});  // slot 0 is on node 0
  deliver(WorkerKill{2, true});
  deliver(WorkerKill{1, false});  // worker 1 has ended already
  const ElasticOrders orders = node_.advance(kStart);
  ASSERT_THAT(orders.starts, SizeIs(1));
  EXPECT_EQ(orders.starts[0].local_rank, 0);
  EXPECT_EQ(orders.starts[0].number, 3);
  EXPECT_THAT(orders.kills, ElementsAre(1));
  EXPECT_TRUE(node_.is_former_member(1));
  EXPECT_FALSE(node_.is_needed(1));
  EXPECT_THAT(node_.advance(kStart).starts, IsEmpty()) << "each order is returned once";
}

TEST_F(OtherNodeOfElasticJob, LearnsWhichMembersAreLost) {
  const MemberLost lost_member{1, 0};
  deliver(lost_member);
  EXPECT_EQ(node_.advance(kStart).lost_member, lost_member);
  EXPECT_FALSE(node_.advance(kStart).lost_member);
}

TEST_F(OtherNodeOfElasticJob, TellsANewLauncherOfNode0WhatItKnows) {
  deliver(GroupFormed{4, {1, 0}, {1, 0}, 3});
  node_.worker_stopped(1, kStart);
  NodeEvents news;
  news.node_0_is_back = true;
  link_.sent_messages.clear();
  node_.handle_events(news, kStart);
  NodeState expected_state{.node = 1,
                           .group = {4, {1, 0}, {1, 0}, 3},
                           .slots = {1, 2},
                           .numbers = {1, 2},
                           .stopped_slots = {2}};
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(-1, NodeMessage(expected_state))));
  node_.worker_ended(0, true, "worker 1", kStart);
  (void)node_.begin_to_leave(kStart + seconds(9));
  link_.sent_messages.clear();
  node_.handle_events(news, kStart);
  expected_state.slots = expected_state.numbers = {2};
  expected_state.is_finishing = expected_state.is_leaving = true;
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(-1, NodeMessage(expected_state))));
}

TEST_F(OtherNodeOfElasticJob, OnlyMembersMatterWhenThereIsAGroup) {
  EXPECT_TRUE(node_.is_needed(0));
  deliver(GroupFormed{1, {0, 2}, {0, 2}});
  EXPECT_TRUE(node_.advance(kStart).group_formed);
  EXPECT_FALSE(node_.is_needed(0));
  EXPECT_TRUE(node_.is_needed(1));
  EXPECT_EQ(node_.rank_of(2), 1);
}

TEST_F(OtherNodeOfElasticJob, AMemberThatEndsFailsTheFormation) {
  deliver(GroupFormed{1, {0, 1, 2}, {0, 1, 2}});
  node_.worker_ended(0, false, "worker 1 (pid 9) was killed", kStart);
  EXPECT_THAT(formation_failure(1).value(), HasSubstr("worker 1 (pid 9) was killed"));
}

TEST_F(OtherNodeOfElasticJob, AMemberThatEndedBeforeTheGroupWasKnownFailsTheFormation) {
  node_.worker_ended(1, false, "worker 2 (pid 9) was killed", kStart);
  EXPECT_FALSE(formation_failure(1).has_value());
  deliver(GroupFormed{1, {0, 1, 2}, {0, 1, 2}});
  EXPECT_THAT(formation_failure(1).value(), HasSubstr("worker 2 (pid 9) was killed"));
  deliver(GroupFormed{2, {0, 1}, {0, 1}});
  EXPECT_FALSE(formation_failure(1).has_value()) << "the keys of the last epoch are removed";
  EXPECT_FALSE(formation_failure(2).has_value());
}

TEST_F(OtherNodeOfElasticJob, TellsNode0AboutStops) {
  node_.worker_stopped(1, kStart);
  node_.worker_continued(1);
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(-1, NodeMessage(WorkerStop{2, true})),
                                               std::pair(-1, NodeMessage(WorkerStop{2, false}))));
}

TEST_F(OtherNodeOfElasticJob, LeavesWhenItsWorkersHaveEnded) {
  EXPECT_TRUE(node_.begin_to_leave(kStart + seconds(30)));
  EXPECT_FALSE(node_.begin_to_leave(kStart + seconds(40))) << "the node is leaving already";
  EXPECT_THAT(link_.sent_messages, ElementsAre(std::pair(-1, NodeMessage(NodeLeaves{1}))));
  EXPECT_EQ(node_.deadline(), kStart + seconds(30));
  EXPECT_FALSE(node_.advance(kStart).must_leave);
  EXPECT_TRUE(node_.advance(kStart + seconds(30)).must_leave);
  EXPECT_FALSE(node_.advance(kStart + seconds(31)).must_leave) << "advance() returns it once";
  EXPECT_FALSE(node_.deadline().has_value());
  EXPECT_FALSE(node_.is_over());
  for (const int local_rank : {0, 1}) node_.worker_ended(local_rank, false, "worker", kStart);
  EXPECT_TRUE(node_.is_over());
  EXPECT_TRUE(node_.is_leaving_job());
}

TEST_F(OtherNodeOfElasticJob, EndsWhenNoMoreWorkersCome) {
  EXPECT_FALSE(node_.is_over());
  deliver(NoMoreWorkers());
  EXPECT_TRUE(node_.is_over());
}

TEST(MakeElasticNode, ANodeThatComesBackWaitsForOrders) {
  const auto store = new_store();
  NodeLinkInTest link;
  link.start = Start{.workers = {1, 2}, .has_begun = true};
  const auto node =
      make_elastic_node({}, {.node = 1, .workers = {1, 2}}, *store, &link, kStart, {});
  ASSERT_TRUE(node.ok());
  NodeEvents news;
  news.messages.emplace_back(WorkerStart{1, 3});
  (*node)->handle_events(news, kStart);
  EXPECT_THAT((*node)->advance(kStart).starts, SizeIs(1));
  EXPECT_FALSE((*node)->is_needed(0)) << "the other nodes have a group without this worker";
  NodeEvents formed_news;
  formed_news.messages.emplace_back(GroupFormed{2, {0, 1}, {0, 3}});
  (*node)->handle_events(formed_news, kStart);
  EXPECT_TRUE((*node)->is_needed(0));
}

TEST(MakeElasticNode, TheMinimumIsAtMostTheNumberOfWorkers) {
  const auto store = new_store();
  const auto node = make_elastic_node({.workers_min = 4}, kLayout, *store, nullptr, kStart, {});
  EXPECT_EQ(node.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(node.status().message(), HasSubstr("--min-workers is 4, but the job has 3 workers"));
}

}  // namespace
}  // namespace farandole
