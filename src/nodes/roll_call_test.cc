#include "nodes/roll_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RollCall roll_of(std::uint32_t nodes, std::uint32_t workers) {
  return RollCall({.nodes = nodes, .workers = workers, .host = "fox"});
}

RollCall three_nodes() { return roll_of(3, 2); }

Hello hello(std::uint32_t node, std::uint32_t nodes = 3, std::uint32_t workers = 1) {
  return {.node = node, .nodes = nodes, .workers = workers, .host = "hen"};
}

TEST(RollCall, NamesTheMissingNodes) {
  EXPECT_EQ(waiting_text({1}, 2), "waiting for node 1 of 2");
  EXPECT_EQ(waiting_text({1, 2, 5}, 6), "waiting for nodes 1, 2, 5 of 6");
}

TEST(RollCall, AnotherVersionIsRejected) {
  RollCall roll({.nodes = 2, .workers = 1, .host = "fox", .version = "1.0"});
  Hello node_1_hello = hello(1, 2);
  node_1_hello.version = "1.1";
  const RollCall::Verdict verdict = roll.add_launcher(node_1_hello, "b");
  EXPECT_EQ(
      verdict.rejection,
      "node 0 on fox has version \"1.0\" of Farandole, and node 1 on hen has version \"1.1\"; "
      "install the same version on all hosts");
  EXPECT_TRUE(verdict.ends_job);
  node_1_hello.version = "1.0";
  EXPECT_EQ(roll.add_launcher(node_1_hello, "b").rejection, "");
  RollCall roll_of_three({.nodes = 3, .workers = 1, .host = "fox", .version = "1.0"});
  node_1_hello.nodes = 3;
  EXPECT_EQ(roll_of_three.add_launcher(node_1_hello, "b").rejection, "");
  node_1_hello.version = "1.1";
  EXPECT_FALSE(roll_of_three.add_launcher(node_1_hello, "c").ends_job)
      << "this node has already joined";
}

TEST(RollCall, IsCompleteInAnyOrder) {
  RollCall roll = three_nodes();
  EXPECT_THAT(roll.missing_nodes(), ElementsAre(1, 2));
  EXPECT_EQ(roll.add_launcher(hello(2, 3, 4), "b").rejection, "");
  EXPECT_FALSE(roll.is_complete());
  EXPECT_THAT(roll.missing_nodes(), ElementsAre(1));
  EXPECT_EQ(roll.add_launcher(hello(1, 3, 1), "a").rejection, "");
  EXPECT_TRUE(roll.is_complete());
  EXPECT_THAT(roll.worker_counts(), ElementsAre(2, 1, 4));
  EXPECT_EQ(roll.name(2), "node 2 (hen)");
}

TEST(RollCall, AJobOfOneNodeIsComplete) { EXPECT_TRUE(roll_of(1, 2).is_complete()); }

TEST(RollCall, ANodeThatLeftBeforeTheStartMayJoinAgain) {
  RollCall roll = three_nodes();
  EXPECT_EQ(roll.add_launcher(hello(1, 3, 7), "a").rejection, "");
  roll.remove_launcher(1);
  EXPECT_THAT(roll.missing_nodes(), ElementsAre(1, 2));
  EXPECT_EQ(roll.add_launcher(hello(1, 3, 2), "b").rejection, "");
  EXPECT_EQ(roll.add_launcher(hello(2), "c").rejection, "");
  EXPECT_THAT(roll.worker_counts(), ElementsAre(2, 2, 1));
}

TEST(RollCall, ANodeOfAnElasticJobMayJoinAgainWithTheSameNumberOfWorkers) {
  RollCall roll({.nodes = 2, .workers = 1, .host = "fox", .is_elastic = true});
  Hello elastic_hello = hello(1, 2, 3);
  EXPECT_THAT(roll.add_launcher(elastic_hello, "a").rejection, HasSubstr("without it"));
  elastic_hello.is_elastic = true;
  EXPECT_EQ(roll.add_launcher(elastic_hello, "a").rejection, "");
  EXPECT_TRUE(roll.is_complete());
  const auto second_verdict = roll.add_launcher(elastic_hello, "b");
  EXPECT_THAT(second_verdict.rejection, HasSubstr("node 1 has already joined"));
  EXPECT_TRUE(second_verdict.may_change);
  roll.remove_launcher(1);
  elastic_hello.workers = 2;
  const auto verdict = roll.add_launcher(elastic_hello, "b");
  EXPECT_THAT(verdict.rejection, HasSubstr("node 1 (hen) had 3 workers, so it can come back with "
                                           "the same number, but not 2"));
  EXPECT_FALSE(verdict.ends_job);
  elastic_hello.is_elastic = false;
  elastic_hello.workers = 3;
  EXPECT_FALSE(roll.add_launcher(elastic_hello, "b").ends_job) << "the job runs";
  elastic_hello.is_elastic = true;
  EXPECT_EQ(roll.add_launcher(elastic_hello, "b").rejection, "");
  roll.record_end(0, 0);
  EXPECT_FALSE(roll.outcome().has_value());
  roll.remove_launcher(1);
  EXPECT_EQ(roll.outcome(), true);
}

TEST(RollCall, AnElasticJobGetsNewNodesInTheirOrder) {
  RollCall roll({.nodes = 1, .workers = 2, .host = "fox", .is_elastic = true});
  Hello elastic_hello = hello(2, 3, 4);
  elastic_hello.is_elastic = true;
  EXPECT_THAT(roll.add_launcher(elastic_hello, "a").rejection,
              HasSubstr("there is no other node 2"));
  elastic_hello.node = 1;
  elastic_hello.is_elastic = false;
  EXPECT_THAT(roll.add_launcher(elastic_hello, "a").rejection, HasSubstr("without it"));
  elastic_hello.is_elastic = true;
  elastic_hello.workers = 0;
  EXPECT_THAT(roll.add_launcher(elastic_hello, "a").rejection, HasSubstr("node 1 has 0 workers"));
  elastic_hello.workers = 4;
  EXPECT_EQ(roll.add_launcher(elastic_hello, "a").rejection, "");
  EXPECT_THAT(roll.worker_counts(), ElementsAre(2, 4));
  EXPECT_EQ(roll.name(1), "node 1 (hen)");
}

TEST(RollCall, AReplacementExpectsTheNodesThatTookPart) {
  RollCall roll({.nodes = 3, .workers = 0, .host = "fox", .is_elastic = true},
                Replacement{.number = 1, .workers = {0, 1, 1, 2}, .nodes = {1, 3}});
  EXPECT_TRUE(roll.is_complete());
  EXPECT_TRUE(roll.expects_nodes());
  const auto hello_again = [](std::uint32_t node, std::uint32_t workers) {
    Hello hello{.node = node, .nodes = 4, .workers = workers, .host = "hen", .is_elastic = true};
    hello.has_begun = true;
    return hello;
  };
  EXPECT_EQ(roll.add_launcher(hello_again(1, 1), "a").rejection, "");
  EXPECT_THAT(roll.add_launcher(hello_again(2, 1), "a").rejection,
              HasSubstr("has gone on without node 2"));
  EXPECT_THAT(roll.add_launcher(hello_again(3, 1), "a").rejection, HasSubstr("had 2 workers"));
  EXPECT_THAT(roll.worker_counts(), ElementsAre(0, 1, 1, 2));
  EXPECT_TRUE(roll.expects_nodes());
  EXPECT_FALSE(roll.stop_expecting().empty());
  EXPECT_THAT(roll.add_launcher(hello_again(3, 2), "a").rejection,
              HasSubstr("has gone on without node 3"));
  Hello restarted = hello_again(3, 2);
  restarted.has_begun = false;
  EXPECT_EQ(roll.add_launcher(restarted, "a").rejection, "");
}

TEST(RollCall, TheSecondLauncherOfANodeIsRejectedAlone) {
  RollCall roll = three_nodes();
  EXPECT_EQ(roll.add_launcher(hello(1), "10.0.0.2:5").rejection, "");
  const auto verdict = roll.add_launcher(hello(1), "10.0.0.3:6");
  EXPECT_THAT(verdict.rejection, HasSubstr("node 1 has already joined, on hen (10.0.0.2:5)"));
  EXPECT_FALSE(verdict.ends_job);
  EXPECT_EQ(roll.add_launcher(hello(2), "c").rejection, "");
  EXPECT_THAT(roll.add_launcher(hello(2), "d").rejection, HasSubstr("node 2 has already joined"));
}

TEST(RollCall, AnotherNumberOfNodesEndsTheJobBeforeTheStartOnly) {
  RollCall roll = roll_of(2, 1);
  auto verdict = roll.add_launcher(hello(1, 3), "a");
  EXPECT_THAT(verdict.rejection,
              HasSubstr("node 0 was started with --nodes 2, and node 1 on hen with --nodes 3"));
  EXPECT_TRUE(verdict.ends_job);
  EXPECT_EQ(roll.add_launcher(hello(1, 2), "a").rejection, "");
  verdict = roll.add_launcher(hello(2, 3), "b");
  EXPECT_THAT(verdict.rejection, HasSubstr("--nodes 3"));
  EXPECT_FALSE(verdict.ends_job);
}

TEST(RollCall, HasThePortsForTensorFlowByRank) {
  RollCall roll({.nodes = 3, .workers = 2, .host = "fox", .tensorflow_ports = {1, 2}});
  Hello node_2_hello = hello(2, 3, 2);
  node_2_hello.tensorflow_ports = {4, 5};
  Hello node_1_hello = hello(1);
  node_1_hello.tensorflow_ports = {3};
  EXPECT_EQ(roll.add_launcher(node_2_hello, "b").rejection, "");
  EXPECT_EQ(roll.add_launcher(node_1_hello, "a").rejection, "");
  EXPECT_TRUE(roll.is_complete());
  EXPECT_THAT(roll.tensorflow_ports(), ElementsAre(1, 2, 3, 4, 5));
}

TEST(RollCall, DifferentFlagsEndTheJob) {
  RollCall without_tensorflow = roll_of(2, 1);
  Hello node_1_hello = hello(1, 2);
  node_1_hello.tensorflow_ports = {7};
  auto verdict = without_tensorflow.add_launcher(node_1_hello, "a");
  EXPECT_EQ(verdict.rejection,
            "node 1 on hen was started with --tf-config, but node 0 on fox without it; start all "
            "nodes with the same flags");
  EXPECT_TRUE(verdict.ends_job);
  RollCall with_tensorflow(
      {.nodes = 2, .workers = 1, .host = "fox", .tensorflow_ports = {6}, .uses_jax = true});
  EXPECT_EQ(with_tensorflow.add_launcher(hello(1, 2), "a").rejection,
            "node 0 on fox was started with --tf-config, but node 1 on hen without it; start all "
            "nodes with the same flags");
  EXPECT_THAT(with_tensorflow.add_launcher(node_1_hello, "a").rejection,
              HasSubstr("node 0 on fox was started with --jax, but node 1 on hen without it"));
  node_1_hello.tensorflow_ports = {7, 8};
  verdict = with_tensorflow.add_launcher(node_1_hello, "a");
  EXPECT_EQ(verdict.rejection, "node 1 has 1 workers, but 2 ports for TensorFlow");
  EXPECT_FALSE(with_tensorflow.is_complete());
}

TEST(RollCall, ImpossibleNumbersAreRejected) {
  RollCall roll = three_nodes();
  EXPECT_THAT(roll.add_launcher(hello(0), "a").rejection, HasSubstr("no other node 0"));
  EXPECT_THAT(roll.add_launcher(hello(3), "a").rejection, HasSubstr("no other node 3"));
  EXPECT_THAT(roll.add_launcher(hello(4'000'000'000), "a").rejection, HasSubstr("no other node"));
  EXPECT_THAT(roll.add_launcher(hello(1, 3, 0), "a").rejection, HasSubstr("1 to 65536"));
  EXPECT_THAT(roll.add_launcher(hello(1, 3, 4'294'967'295), "a").rejection,
              HasSubstr("1 to 65536"));
  EXPECT_THAT(roll.missing_nodes(), ElementsAre(1, 2));
}

TEST(RollCall, TheJobIsOverWhenAllNodesHaveEndedOrLeft) {
  RollCall roll = three_nodes();
  EXPECT_EQ(roll.add_launcher(hello(1), "a").rejection, "");
  EXPECT_EQ(roll.add_launcher(hello(2), "b").rejection, "");
  EXPECT_FALSE(roll.outcome().has_value());
  roll.record_end(0, 0);
  roll.record_end(1, 0);
  EXPECT_THAT(roll.running_nodes(), ElementsAre(2));
  roll.remove_launcher(1);  // node 1 had ended, so its loss is not a failure
  RollCall roll_copy = roll;
  roll.record_end(2, 0);
  EXPECT_EQ(roll.outcome(), true);
  roll_copy.remove_launcher(2);
  EXPECT_EQ(roll_copy.outcome(), false);
  EXPECT_THAT(roll_copy.add_launcher(hello(2), "c").rejection, HasSubstr("the job runs already"));
}

TEST(RollCall, AFailedNodeFailsTheJob) {
  RollCall roll = roll_of(2, 1);
  EXPECT_EQ(roll.add_launcher(hello(1, 2), "a").rejection, "");
  roll.record_end(1, 3);
  roll.record_end(0, 0);
  EXPECT_EQ(roll.outcome(), false);
}

TEST(RollCall, ANodeWithoutAMemberDoesNotFailAnElasticJob) {
  RollCall roll({.nodes = 4, .workers = 1, .host = "fox", .is_elastic = true});
  for (const std::uint32_t node : {1U, 2U, 3U}) {
    Hello elastic_hello = hello(node, 4, 2);
    elastic_hello.is_elastic = true;
    EXPECT_EQ(roll.add_launcher(elastic_hello, "a").rejection, "");
  }
  roll.record_end(2, 5);
  roll.group_formed({6, 0});  // of nodes 3 and 0
  EXPECT_FALSE(roll.is_needed(1) || roll.is_needed(2));
  EXPECT_TRUE(roll.is_needed(0) && roll.is_needed(3));
  roll.record_end(1, 5);
  roll.record_end(0, 0);
  RollCall roll_copy = roll;
  roll.record_end(3, 0);
  EXPECT_EQ(roll.outcome(), true);
  roll_copy.record_end(3, 5);
  EXPECT_EQ(roll_copy.outcome(), false);
}

// Launchers join and leave in random order. The job never has two launchers of one node. It always
// begins when all nodes have joined at the same time.
TEST(RollCall, RandomEventsNeverBreakTheRules) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    RollCall roll = roll_of(4, 1);
    std::vector<bool> is_here{true, false, false, false};
    while (!roll.is_complete()) {
      const auto node = static_cast<int>(random() % 5);
      const bool leaves = node > 0 && node < 4 && is_here[static_cast<std::size_t>(node)];
      if (leaves && random() % 3 == 0) {
        roll.remove_launcher(node);
        is_here[static_cast<std::size_t>(node)] = false;
        continue;
      }
      const bool accepted =
          roll.add_launcher(hello(static_cast<std::uint32_t>(node), 4), "a").rejection.empty();
      const bool is_free = node > 0 && node < 4 && !is_here[static_cast<std::size_t>(node)];
      EXPECT_EQ(accepted, is_free);
      if (accepted) is_here[static_cast<std::size_t>(node)] = true;
    }
    EXPECT_EQ(is_here, (std::vector<bool>{true, true, true, true}));
    EXPECT_TRUE(roll.missing_nodes().empty());
  }
}

}  // namespace
}  // namespace farandole
