#include "diagnosis/stall_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr TimePoint kNow{seconds(1000)};
constexpr StallLimits kLimits{.limit = seconds(10), .counts_from = {}};

TimePoint ago(double time) {
  return kNow - std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time));
}

class StallVerdictTest : public ::testing::Test {
 protected:
  explicit StallVerdictTest(int size = 3) {
    for (int rank = 0; rank < size; ++rank) {
      WatchedWorker worker;
      worker.host = "b";
      worker.pid = 710 + rank;
      worker.report.member_state = MemberState::kMember;
      worker.report.since = ago(100);
      worker.report.groups = {kWorld};
      workers_.push_back(worker);
    }
  }
  WatchedWorker& worker(int rank) { return workers_[static_cast<std::size_t>(rank)]; }
  FlightReport& report(int rank) { return worker(rank).report; }
  RecordedCall& add_call(int rank, CallState state, const std::string& name, double submitted,
                         double changed) {
    RecordedCall call;
    call.handle = ++last_handle_;
    call.operation = Operation::kAllreduce;
    call.dtype = DType::kFloat32;
    call.elements = 10;
    call.name = name;
    call.name_hash = std::hash<std::string>()(name);
    call.state = state;
    call.submitted = ago(submitted);
    call.changed = ago(changed);
    report(rank).calls.push_back(call);
    return report(rank).calls.back();
  }
  // Adds a call in which the rank's program waits.
  RecordedCall& add_wait(int rank, const std::string& name, double time) {
    report(rank).wait = {.handle = last_handle_ + 1, .since = ago(time), .until = {}};
    return add_call(rank, CallState::kWaiting, name, time, time);
  }
  RecordedCall& add_done_call(int rank, const std::string& name, double time) {
    return add_call(rank, CallState::kDone, name, time + 1, time);
  }
  std::vector<std::string> lines() {
    const auto verdict = stall_verdict(JobSnapshot(workers_, kNow), kLimits);
    return verdict ? verdict->lines : std::vector<std::string>();
  }
  std::vector<int> unexplained_ranks() {
    return stall_verdict(JobSnapshot(workers_, kNow), kLimits)->unexplained_ranks;
  }

  std::vector<WatchedWorker> workers_;
  Handle last_handle_ = 0;
};

TEST_F(StallVerdictTest, ShortWaitsAreNoStall) {
  add_wait(0, "x", 9.9);
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(StallVerdictTest, NamesTheCallAndTheMissingRanks) {
  for (const int rank : {0, 1, 2}) add_done_call(rank, "w", 12);
  add_wait(0, "x", 11.2);
  add_wait(2, "x", 3);
  EXPECT_THAT(lines(),
              ElementsAre("stalled: allreduce `x` (float32, 10 elements) waits for rank 1",
                          "  ranks 0, 2 have been waiting in it for 3.0 s to 11.2 s",
                          "  rank 1 (b, pid 711) has not called it; its last call, allreduce `w`, "
                          "finished 12.0 s ago"));
  EXPECT_THAT(unexplained_ranks(), ElementsAre(1));
  const auto verdict = stall_verdict(JobSnapshot(workers_, kNow), kLimits);
  EXPECT_EQ(verdict->rank, 0);
  EXPECT_EQ(verdict->title, "allreduce `x`");
  EXPECT_EQ(verdict->since, ago(11.2));
}

TEST_F(StallVerdictTest, AFinishedCallOfTheSameNameDoesNotCount) {
  for (const int rank : {0, 1, 2}) add_done_call(rank, "loop", 20);
  for (const int rank : {0, 2}) add_wait(rank, "loop", 15);
  EXPECT_THAT(lines()[0], HasSubstr("`loop` (float32, 10 elements) waits for rank 1"));
}

TEST_F(StallVerdictTest, NamesARankThatNeverMadeACall) {
  add_wait(0, "x", 11);
  add_wait(1, "x", 11);
  EXPECT_THAT(
      lines().back(),
      "  rank 2 (b, pid 712) has not called it; it has made no call since init(), 1 min 40 s ago");
}

TEST_F(StallVerdictTest, DescribesWhatMissingRanksDo) {
  workers_.resize(1);
  add_wait(0, "x", 11);
  for (int rank = 1; rank < 6; ++rank)
    workers_.push_back({.host = "b", .pid = 710 + rank, .report = {}, .end = ""});
  worker(1).end = "exited with code 0";
  report(1).counts.calls = 1204;
  worker(2).stop_signal = SIGSTOP;
  report(4).member_state = MemberState::kForming;
  report(5).member_state = MemberState::kLeft;
  report(5).reason = "it called shutdown()\a";
  report(4).since = ago(1);
  EXPECT_THAT(
      lines(),
      ElementsAre(
          "stalled: allreduce `x` (float32, 10 elements) waits for ranks 1-5",
          "  rank 0 has been waiting in it for 11.0 s",
          "  rank 1 (b, pid 711) has ended (exited with code 0) after 1,204 calls",
          "  rank 2 (b, pid 712) is stopped (SIGSTOP); `kill -CONT 712` lets it go on",
          "  rank 3 (b, pid 713) has not called init()", "  rank 4 (b, pid 714) waits in init()",
          "  rank 5 (b, pid 715) has left the job (it called shutdown()\\x07) after 0 calls"));
  EXPECT_THAT(unexplained_ranks(), ElementsAre(3));
}

TEST_F(StallVerdictTest, AListOfManyMissingRanksIsCut) {
  add_wait(0, "x", 11);
  for (int rank = 3; rank < 20; ++rank) {
    workers_.push_back(workers_[1]);
    worker(rank).pid = 710 + rank;
  }
  EXPECT_EQ(lines().size(), 2U + 8 + 1);
  EXPECT_EQ(lines().back(), "  … and 11 more ranks");
}

TEST_F(StallVerdictTest, TwoRanksThatWaitForEachOtherAreACycle) {
  add_wait(0, "a", 20);
  add_wait(1, "b", 15);
  add_done_call(2, "z", 30);
  EXPECT_THAT(
      lines(),
      ElementsAre("stalled: ranks 0, 1 wait for each other:",
                  "  rank 0 (b, pid 710) has been waiting for 20.0 s in allreduce `a` (float32, 10 "
                  "elements) for ranks 1, 2",
                  "  rank 1 (b, pid 711) has been waiting for 15.0 s in allreduce `b` (float32, 10 "
                  "elements) for ranks 0, 2",
                  "  all ranks of a group must make the same blocking calls, in the same order"));
  EXPECT_THAT(unexplained_ranks(), ElementsAre(0, 1));
}

TEST_F(StallVerdictTest, ACycleOfOptimizersNamesItsCause) {
  add_wait(0, "gradients.0.1 (fc1.weight)", 20);
  add_wait(1, "gradients.1.0", 15);
  add_done_call(2, "z", 30);
  EXPECT_THAT(lines().back(), HasSubstr("the ranks use their optimizers in different orders"));
}

TEST_F(StallVerdictTest, ACycleWithinAnOptimizerNamesItsCause) {
  add_wait(0, "gradients.1.parameters.same", 20);
  add_wait(1, "gradients.1.0", 15);
  add_done_call(2, "z", 30);
  EXPECT_THAT(lines().back(), HasSubstr("make or skip the same steps"));
  EXPECT_THAT(lines().back(), HasSubstr("different layers in a step, run backward() within"));
}

TEST_F(StallVerdictTest, ACycleWithAnotherCallHasNoCauseInOptimizers) {
  add_wait(0, "gradients.1.0", 20);
  add_wait(1, "gradients.1", 15);
  add_done_call(2, "z", 30);
  EXPECT_THAT(lines().back(), HasSubstr("must make the same blocking calls"));
}

// Two ranks wait for each other. A third rank, which has waited longest, waits for these two.
TEST_F(StallVerdictTest, ACycleIsFoundFromARankOutsideOfIt) {
  for (const int rank : {0, 1}) report(rank).groups.push_back(1);
  add_wait(2, "c", 30);
  add_wait(0, "a", 20).group = 1;
  add_wait(1, "b", 15).group = 1;
  EXPECT_THAT(lines()[0], "stalled: ranks 0, 1 wait for each other:");
}

TEST_F(StallVerdictTest, ACycleBeginsWithItsLowestRank) {
  add_wait(1, "b", 20);
  add_wait(0, "a", 15);
  add_done_call(2, "z", 30);
  EXPECT_THAT(lines()[1], HasSubstr("rank 0 (b, pid 710)"));
}

// Both calls wait, but no program waits in its call. So each rank may still make the call of the
// other rank.
TEST_F(StallVerdictTest, AsynchronousCallsMakeNoCycle) {
  for (const int rank : {0, 1}) {
    add_wait(rank, rank == 0 ? "a" : "b", 20);
    report(rank).wait = {};
  }
  EXPECT_THAT(lines()[0], "stalled: allreduce `a` (float32, 10 elements) waits for ranks 1, 2");
  EXPECT_THAT(unexplained_ranks(), ElementsAre(1, 2));
}

// Python interrupts a wait briefly to handle signals.
TEST_F(StallVerdictTest, AShortPauseInAWaitDoesNotEndIt) {
  add_wait(0, "a", 20);
  add_wait(1, "b", 15);
  add_done_call(2, "z", 30);
  report(1).wait.until = ago(0.2);
  EXPECT_THAT(lines()[0], "stalled: ranks 0, 1 wait for each other:");
  report(1).wait.until = ago(0.3);
  EXPECT_THAT(lines()[0], HasSubstr("`a` (float32, 10 elements) waits for ranks 1, 2"));
}

TEST_F(StallVerdictTest, AnotherThreadMayWaitInAnotherCall) {
  add_wait(0, "a", 20);
  add_wait(1, "b", 15);
  add_done_call(1, "c", 1);
  report(1).wait.handle = report(1).calls.back().handle;
  EXPECT_THAT(lines()[0], "stalled: ranks 0, 1 wait for each other:");
}

TEST_F(StallVerdictTest, AChainOfWaitsIsNotACycle) {
  // Rank 0 waits for rank 1 in group 1, and rank 1 waits for rank 2 in group 2. Rank 2 is in no
  // call.
  for (const int rank : {0, 1}) report(rank).groups.push_back(1);
  for (const int rank : {1, 2}) report(rank).groups.push_back(2);
  add_wait(0, "a", 20).group = 1;
  add_wait(1, "b", 15).group = 2;
  EXPECT_THAT(lines(),
              ElementsAre("stalled: allreduce `a` (float32, 10 elements, group 1) waits for rank 1",
                          "  rank 0 has been waiting in it for 20.0 s",
                          "  rank 1 (b, pid 711) waits in allreduce `b` (float32, 10 elements, "
                          "group 2) for rank 2"));
  EXPECT_THAT(unexplained_ranks(), IsEmpty());
}

TEST_F(StallVerdictTest, ACycleMaySpanThreeGroups) {
  const std::vector<std::pair<int, int>> members{{0, 1}, {1, 2}, {0, 2}};
  for (GroupId group = 1; group <= 3; ++group)
    for (const int rank : {members[group - 1].first, members[group - 1].second})
      report(rank).groups.push_back(group);
  add_wait(0, "a", 20).group = 1;
  add_wait(1, "b", 15).group = 2;
  add_wait(2, "c", 12).group = 3;
  EXPECT_THAT(
      lines(),
      ElementsAre("stalled: ranks 0-2 wait for each other:",
                  "  rank 0 (b, pid 710) has been waiting for 20.0 s in allreduce `a` (float32, 10 "
                  "elements, group 1) for rank 1",
                  "  rank 1 (b, pid 711) has been waiting for 15.0 s in allreduce `b` (float32, 10 "
                  "elements, group 2) for rank 2",
                  "  rank 2 (b, pid 712) has been waiting for 12.0 s in allreduce `c` (float32, 10 "
                  "elements, group 3) for rank 0",
                  "  all ranks of a group must make the same blocking calls, in the same order"));
}

TEST_F(StallVerdictTest, OnlyMembersOfTheGroupAreMissing) {
  for (const int rank : {0, 1}) report(rank).groups.push_back(4);
  add_wait(0, "x", 20).group = 4;
  EXPECT_THAT(lines()[0], HasSubstr("waits for rank 1"));
  add_wait(1, "x", 20).group = 4;
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(StallVerdictTest, AStoppedRankStallsEvenARunningCall) {
  for (const int rank : {0, 1, 2}) add_call(rank, CallState::kRunning, "big", 30, 29);
  EXPECT_THAT(lines(), IsEmpty());  // a long transfer is not a stall
  worker(1).stop_signal = SIGTSTP;
  EXPECT_THAT(lines(),
              ElementsAre("stalled: allreduce `big` (float32, 10 elements) waits for rank 1",
                          "  ranks 0, 2 have been waiting in it for 30.0 s",
                          "  rank 1 (b, pid 711) is stopped (SIGTSTP); `kill -CONT 711` lets it go "
                          "on"));
}

TEST_F(StallVerdictTest, AJoinedRankWaitsForTheOthersData) {
  add_wait(0, "join", 60).operation = Operation::kJoin;
  add_done_call(1, "x", 2);
  add_done_call(2, "x", 2);
  EXPECT_THAT(lines(), IsEmpty());  // the other ranks continue without the joined rank
  report(1).calls.clear();
  add_done_call(1, "x", 40);
  EXPECT_THAT(lines(), IsEmpty());
  report(2).calls.clear();
  add_done_call(2, "x", 40);
  EXPECT_THAT(lines()[0], "stalled: join `join` waits for ranks 1, 2");
}

TEST_F(StallVerdictTest, AJoinedRankIsMissingOnlyInOperationsThatNeedItsData) {
  add_wait(0, "join", 60).operation = Operation::kJoin;
  add_wait(1, "x", 30);
  EXPECT_THAT(lines()[0], HasSubstr("waits for rank 2"));
  workers_[1].report.calls.clear();
  add_wait(2, "g", 50).operation = Operation::kBroadcast;
  EXPECT_THAT(lines()[0], HasSubstr("broadcast `g`"));
  EXPECT_THAT(lines(), Contains("  rank 0 (b, pid 710) has no more data (join) after 0 calls"));
}

TEST_F(StallVerdictTest, AJoinedRankThatDiedIsMissing) {
  for (const int rank : {0, 2}) add_wait(rank, "x", 30).changed = ago(1);
  add_wait(1, "join", 60).operation = Operation::kJoin;
  EXPECT_THAT(lines(), IsEmpty());  // the joined rank takes part without data
  worker(1).end = "killed by signal 9 (SIGKILL)";
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("`x` (float32, 10 elements) waits for rank 1"),
                                   "  ranks 0, 2 have been waiting in it for 30.0 s",
                                   HasSubstr("has ended (killed by signal 9 (SIGKILL))")));
}

// The oldest call is reported; its rank and its handle do not matter.
TEST_F(StallVerdictTest, TheCallThatHasWaitedLongestIsReported) {
  add_call(0, CallState::kWaiting, "young", 11, 11);
  add_call(0, CallState::kWaiting, "old", 15, 15);
  EXPECT_THAT(lines()[0], HasSubstr("`old`"));
  add_call(1, CallState::kWaiting, "older", 20, 20);
  add_call(2, CallState::kWaiting, "youngest", 10.5, 10.5);
  EXPECT_THAT(lines()[0], HasSubstr("`older`"));
}

TEST_F(StallVerdictTest, InitWaitsForRanksThatHaveNotCalledIt) {
  for (const int rank : {0, 2}) {
    report(rank) = {};
    report(rank).member_state = MemberState::kForming;
  }
  report(0).since = ago(12);
  report(2).since = ago(1);
  report(1) = {};
  EXPECT_THAT(lines(), ElementsAre("stalled: init() waits for rank 1",
                                   "  ranks 0, 2 have been waiting in it for 1.0 s to 12.0 s",
                                   "  rank 1 (b, pid 711) has not called init()"));
  EXPECT_THAT(unexplained_ranks(), ElementsAre(1));
  EXPECT_EQ(stall_verdict(JobSnapshot(workers_, kNow), kLimits)->handle, 0U);
  report(0).since = ago(9);
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(StallVerdictTest, InitWaitsForAStoppedRank) {
  for (const int rank : {0, 1, 2}) {
    report(rank).member_state = MemberState::kForming;
    report(rank).since = ago(20);
  }
  EXPECT_THAT(lines(), IsEmpty());
  worker(2).stop_signal = SIGSTOP;
  EXPECT_THAT(lines()[0], "stalled: init() waits for rank 2");
  for (const int rank : {0, 1}) worker(rank).stop_signal = SIGSTOP;
  EXPECT_THAT(lines()[0], "stalled: init() waits for ranks 0-2");
  EXPECT_THAT(lines()[1], "  no other rank is in it");
}

TEST_F(StallVerdictTest, TimeBeforeTheJobContinuedDoesNotCount) {
  add_wait(0, "x", 60);
  EXPECT_FALSE(stall_verdict(JobSnapshot(workers_, kNow), {seconds(10), ago(5)}).has_value());
  EXPECT_TRUE(stall_verdict(JobSnapshot(workers_, kNow), {seconds(10), ago(10)}).has_value());
}

// All ranks have as many calls in flight as possible. An algorithm that compares every call with
// every other would take minutes.
TEST(StallVerdict, ManyRanksWithManyCallsAreExaminedQuickly) {
  constexpr int kRanks = 256;
  std::vector<WatchedWorker> workers(kRanks);
  for (WatchedWorker& worker : workers) {
    worker.report.member_state = MemberState::kMember;
    worker.report.groups = {kWorld};
    for (std::size_t i = 0; i < kFlightCalls; ++i) {
      RecordedCall call;
      call.handle = i + 1;
      call.name_hash = i;
      call.state = CallState::kRunning;
      call.submitted = call.changed = ago(100);
      worker.report.calls.push_back(call);
    }
  }
  EXPECT_FALSE(stall_verdict(JobSnapshot(workers, kNow), kLimits).has_value());
  workers.back().report.calls.pop_back();
  for (WatchedWorker& worker : workers)
    if (worker.report.calls.size() == kFlightCalls)
      worker.report.calls.back().state = CallState::kWaiting;
  const auto verdict = stall_verdict(JobSnapshot(workers, kNow), kLimits);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_THAT(verdict->lines[0], HasSubstr("waits for rank 255"));
}

TEST_F(StallVerdictTest, AMessageWaitsForTheOtherRankOnly) {
  RecordedCall& call = add_wait(0, "2to0", 12);
  call.operation = Operation::kReceive;
  call.peer = 2;
  ASSERT_FALSE(lines().empty());
  EXPECT_THAT(lines()[0], HasSubstr("stalled: recv `2to0`"));
  EXPECT_THAT(lines()[0], HasSubstr("waits for rank 2"));
  call.peer = kAnyRank;
  EXPECT_THAT(lines()[0], HasSubstr("waits for ranks 1, 2"));
  call.state = CallState::kRunning;
  EXPECT_THAT(lines(), IsEmpty());
}

TEST_F(StallVerdictTest, AReceiveFromAnyRankIsInNoCycle) {
  RecordedCall& receive_from_any = add_wait(0, "anyto0", 12);
  receive_from_any.operation = Operation::kReceive;
  receive_from_any.peer = kAnyRank;
  RecordedCall& other = add_wait(1, "0to1", 12);
  other.operation = Operation::kReceive;
  other.peer = 0;
  EXPECT_THAT(lines(), Not(Contains(HasSubstr("wait for each other"))));
  receive_from_any.peer = 1;
  EXPECT_THAT(lines(), Contains(HasSubstr("wait for each other")));
}

}  // namespace
}  // namespace farandole
