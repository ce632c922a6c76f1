#include "launcher/common_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "nodes/node_link_in_test.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CommonEndTest : public ::testing::Test {
 protected:
  // Each wait calls `while_waiting`.
  int wait_for_exit_code(const CommonEnd::OwnEnd& own_end, const WaitForNodes& while_waiting) {
    return end.wait_for_exit_code(own_end, link, [&](TimePoint limit) {
      ++waits;
      while_waiting(limit);
    });
  }
  std::vector<int> sent_exit_codes() const {
    std::vector<int> codes;
    for (const auto& [node, message] : link.sent_messages)
      codes.push_back(static_cast<int>(std::get<JobOver>(message).exit_code));
    return codes;
  }

  EndRequests requests;
  NodeLinkInTest link;
  std::vector<std::string> notices, errors, lines;
  CommonEnd end{requests,
                {.show_notice = [this](const std::string& line) { notices.push_back(line); },
                 .show_error = [this](const std::string& line) { errors.push_back(line); },
                 .show_lines = [this](const std::vector<std::string>& more) { lines = more; }}};
  int waits = 0;
};

TEST_F(CommonEndTest, Node0WaitsForTheOthersAndTellsThemTheExitCode) {
  link.job_outcome.reset();
  EXPECT_EQ(wait_for_exit_code({.exit_code = 0, .is_first_node = true},
                               [this](TimePoint) { link.job_outcome = true; }),
            0);
  EXPECT_EQ(waits, 1);
  EXPECT_EQ(link.own_exit_code, 0);
  EXPECT_THAT(sent_exit_codes(), ElementsAre(0));
  EXPECT_THAT(errors, IsEmpty());
}

TEST_F(CommonEndTest, WaitsUntilTheOthersAreGoneOrItIsLate) {
  const TimePoint far_limit = std::chrono::steady_clock::now() + std::chrono::hours(1);
  wait_until_others_are_gone(link, 3, far_limit, [this](TimePoint limit) {
    EXPECT_GT(limit, std::chrono::steady_clock::now());
    link.disconnected_nodes.insert(++waits);
  });
  EXPECT_EQ(waits, 2);
  link.disconnected_nodes.clear();
  const TimePoint past_limit = std::chrono::steady_clock::now();
  wait_until_others_are_gone(link, 3, past_limit, [this](TimePoint) { ++waits; });
  EXPECT_EQ(waits, 2) << "the limit has passed";
}

TEST_F(CommonEndTest, TheFirstFailureOfAnotherNodeGivesTheExitCode) {
  link.job_outcome.reset();
  const auto others_end = [this](TimePoint) {
    end.node_failed({.node = 2, .failure = {.why = "rank 2 has exited", .rank = 2}});
    end.node_failed({.node = 1, .failure = {.why = "rank 1 has exited", .rank = 1}});
    end.nodes_ended({{.node = 1, .exit_code = 4, .report = {}},
                     {.node = 2, .exit_code = 3, .report = {"rank 2 failed"}}});
    link.job_outcome = false;
  };
  EXPECT_EQ(wait_for_exit_code({.exit_code = 0, .is_first_node = true}, others_end), 3);
  EXPECT_THAT(lines, ElementsAre("rank 2 failed"));
  EXPECT_THAT(errors, ElementsAre(HasSubstr("the job has failed: rank 2 has exited")));
  EXPECT_THAT(sent_exit_codes(), ElementsAre(3));
}

TEST_F(CommonEndTest, AFailureThatHasCausedAnotherOneComesFirst) {
  end.node_failed({.node = 2, .failure = {.why = "the victim", .rank = 2, .blamed_rank = 1}});
  end.node_failed({.node = 1, .failure = {.why = "the cause", .rank = 1}});
  EXPECT_EQ(end.other_failure()->node, 1);
}

TEST_F(CommonEndTest, AFailedNodeWaitsUntilTheCauseIsKnown) {
  link.job_outcome.reset();
  const auto wait_for_cause = [&](const WaitForNodes& wait) {
    end.wait_for_cause(
        {.exit_code = 1}, [&] { return end.other_failure().has_value(); }, link,
        [&](TimePoint limit) {
          EXPECT_EQ(link.own_exit_code, 1) << "other victims wait, too";
          ++waits;
          wait(limit);
        });
  };
  wait_for_cause([this](TimePoint) {
    if (waits == 2) end.node_failed({.node = 1, .failure = {.why = "the cause", .rank = 1}});
  });
  EXPECT_EQ(waits, 2);
  wait_for_cause([](TimePoint) {});
  EXPECT_EQ(waits, 2);
  link.own_exit_code.reset();
  link.job_outcome = false;
  end.nodes_ended({{.node = 1, .exit_code = 4, .report = {"the box of rank 1"}}});
  EXPECT_EQ(wait_for_exit_code({.exit_code = 1, .is_first_node = true}, [](TimePoint) {}), 4);
  EXPECT_THAT(lines, ElementsAre("the box of rank 1"));
  EXPECT_FALSE(link.own_exit_code.has_value()) << "the end is told once";
}

TEST_F(CommonEndTest, AFailedNodeDoesNotWaitAfterTheEndOfAllNodes) {
  link.job_outcome.reset();
  end.wait_for_cause(
      {.exit_code = 1}, [] { return false; }, link,
      [this](TimePoint) {
        ++waits;
        link.job_outcome = false;
      });
  EXPECT_EQ(waits, 1);
}

TEST_F(CommonEndTest, AFailureOfThisNodeFailsTheJob) {
  end.node_failed({.node = 1, .failure = {.why = "", .rank = 1}});
  end.nodes_ended({{.node = 1, .exit_code = 4, .report = {}}});
  link.job_outcome = false;
  EXPECT_EQ(wait_for_exit_code({.exit_code = 5, .has_failed_itself = true, .is_first_node = true},
                               [](TimePoint) {}),
            5);
  EXPECT_THAT(lines, IsEmpty());
}

TEST_F(CommonEndTest, ASurvivedFailureDoesNotFailTheJob) {
  const CommonEnd::OwnEnd own_end{.exit_code = 0, .is_first_node = true, .is_elastic = true};
  end.nodes_ended({{.node = 1, .exit_code = 4, .report = {"its box"}}});
  end.failures_survived();
  EXPECT_EQ(wait_for_exit_code(own_end, [](TimePoint) {}), 0);
  EXPECT_THAT(lines, IsEmpty());
}

TEST_F(CommonEndTest, OtherNodesReturnTheExitCodeOfNode0) {
  link.received_job_over = JobOver{7};
  link.job_outcome = false;
  EXPECT_EQ(wait_for_exit_code({.exit_code = 1}, [](TimePoint) {}), 7);
  EXPECT_THAT(link.sent_messages, IsEmpty());
}

TEST_F(CommonEndTest, ASignalEndsTheWait) {
  link.job_outcome.reset();
  const auto signal_comes = [this](TimePoint) {
    requests = {.last_signal = SIGINT, .skip_waits = true};
  };
  EXPECT_EQ(wait_for_exit_code({.exit_code = 0}, signal_comes), 128 + SIGINT);
  EXPECT_EQ(waits, 1);
  EXPECT_THAT(errors, ElementsAre(HasSubstr("SIGINT has ended it")));
}

TEST_F(CommonEndTest, ASignalAfterAFailureOfAnotherNodeKeepsTheCause) {
  end.node_failed({.node = 1, .failure = {.why = "rank 1 has exited", .rank = 1}});
  end.nodes_ended({{.node = 1, .exit_code = 7, .report = {"its box"}}});
  requests.last_signal = SIGINT;
  link.job_outcome = false;
  EXPECT_EQ(wait_for_exit_code({.exit_code = 1, .is_first_node = true}, [](TimePoint) {}), 7);
  EXPECT_THAT(lines, ElementsAre("its box"));
}

TEST_F(CommonEndTest, WorkersOfOtherNodesHaveTheGraceTimeAfterASignal) {
  link.job_outcome.reset();
  end.node_failed({.node = 1, .failure = {.why = "SIGTERM has ended it", .signal = SIGTERM}});
  const CommonEnd::OwnEnd own_end{
      .exit_code = 0, .is_first_node = true, .grace = std::chrono::hours(1)};
  const TimePoint start = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_for_exit_code(own_end,
                               [&](TimePoint limit) {
                                 EXPECT_GT(limit, start + std::chrono::hours(1));
                                 requests.foreground_is_gone = true;
                               }),
            128 + SIGTERM);
}

TEST_F(CommonEndTest, Node0TellsTheOthersWhichNodeHasFailedFirst) {
  end.node_failed({.node = 2, .failure = {.why = "rank 2 has exited", .rank = 2}});
  end.nodes_ended({{.node = 2, .exit_code = 7, .report = {}}});
  link.job_outcome = false;
  EXPECT_EQ(wait_for_exit_code({.exit_code = 1, .is_first_node = true}, [](TimePoint) {}), 7);
  ASSERT_THAT(link.sent_messages, SizeIs(1));
  EXPECT_EQ(std::get<JobOver>(link.sent_messages.front().second), (JobOver{7, 2}));
  EXPECT_FALSE(end.may_be_first_failed_node(0));
  EXPECT_TRUE(end.may_be_first_failed_node(2));
}

TEST_F(CommonEndTest, OtherNodesLearnWhichNodeHasFailedFirst) {
  link.received_job_over = JobOver{.exit_code = 7, .first_failed_node = 2};
  link.job_outcome = false;
  EXPECT_EQ(wait_for_exit_code({.exit_code = 1}, [](TimePoint) {}), 7);
  EXPECT_FALSE(end.may_be_first_failed_node(1));
  EXPECT_TRUE(end.may_be_first_failed_node(2));
}

TEST_F(CommonEndTest, ASignalAfterTheOwnEndIsPassedOnOnce) {
  link.job_outcome.reset();
  const NodeFailure own_signal{.why = "SIGTERM has ended it", .signal = SIGTERM};
  EXPECT_TRUE(end.pass_on_signal(own_signal, link));
  EXPECT_THAT(link.failures, ElementsAre(own_signal));
  EXPECT_FALSE(end.pass_on_signal(own_signal, link)) << "a second signal ends the wait";
  EXPECT_THAT(link.failures, SizeIs(1));
}

TEST_F(CommonEndTest, ASignalAfterAFailureIsNotPassedOn) {
  link.job_outcome.reset();
  end.tell_own_failure(NodeFailure{.why = "rank 0 has exited", .rank = 0}, link);
  EXPECT_FALSE(end.pass_on_signal({.why = "SIGTERM has ended it", .signal = SIGTERM}, link));
  EXPECT_THAT(link.failures, SizeIs(1));
}

TEST_F(CommonEndTest, ASignalThatAnotherNodeHasReportedIsNotPassedOn) {
  link.job_outcome.reset();
  const NodeFailure own_signal{.why = "SIGTERM has ended it", .signal = SIGTERM};
  end.node_failed({.node = 1, .failure = own_signal});
  EXPECT_TRUE(end.pass_on_signal(own_signal, link)) << "the other nodes end after the signal";
  EXPECT_THAT(link.failures, IsEmpty());
}

TEST_F(CommonEndTest, ASignalAfterTheWaitIsNotPassedOn) {
  link.job_outcome.reset();
  requests.foreground_is_gone = true;  // so there is no wait
  wait_for_exit_code({.exit_code = 0}, [](TimePoint) {});
  EXPECT_FALSE(end.pass_on_signal({.why = "SIGTERM has ended it", .signal = SIGTERM}, link));
  EXPECT_THAT(link.failures, IsEmpty());
}

TEST_F(CommonEndTest, ASignalThatIsReportedDuringTheWaitExtendsTheLimit) {
  link.job_outcome.reset();
  const TimePoint start = std::chrono::steady_clock::now();
  std::vector<TimePoint> limits;
  end.wait_for_cause(
      {.exit_code = 1, .grace = std::chrono::hours(1)}, [&] { return limits.size() == 2; }, link,
      [&](TimePoint limit) {
        limits.push_back(limit);
        end.node_failed({.node = 1, .failure = {.why = "SIGTERM", .signal = SIGTERM}});
      });
  EXPECT_LT(limits.at(0), start + std::chrono::hours(1));
  EXPECT_GT(limits.at(1), start + std::chrono::hours(1));
}

TEST_F(CommonEndTest, InAnElasticJobANodeWithAReportHasFailedFirst) {
  end.nodes_ended({{.node = 2, .exit_code = 1, .report = {}},
                   {.node = 1, .exit_code = 3, .report = {"the box of rank 1"}}});
  link.job_outcome = false;
  const CommonEnd::OwnEnd own_end{.exit_code = 1, .is_first_node = true, .is_elastic = true};
  EXPECT_EQ(wait_for_exit_code(own_end, [](TimePoint) {}), 3);
  EXPECT_THAT(lines, ElementsAre("the box of rank 1"));
  EXPECT_TRUE(end.may_be_first_failed_node(1));
  EXPECT_FALSE(end.may_be_first_failed_node(2));
}

TEST_F(CommonEndTest, DoesNotWaitWithoutTheForegroundProcess) {
  link.job_outcome.reset();
  requests.foreground_is_gone = true;
  EXPECT_EQ(wait_for_exit_code({.exit_code = 1}, [](TimePoint) {}), 1);
  EXPECT_EQ(waits, 0);
}

TEST_F(CommonEndTest, TheOwnFailureIsReportedOnce) {
  end.tell_own_failure({}, link);
  EXPECT_THAT(link.failures, IsEmpty());
  end.tell_own_failure(NodeFailure{.why = "it failed"}, link);
  end.tell_own_failure(NodeFailure{.why = "it failed"}, link);
  EXPECT_THAT(link.failures, SizeIs(1));
}

}  // namespace
}  // namespace farandole
