#include "diagnosis/rank_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kStatusTime{seconds(1000)};

class RankStatusTest : public ::testing::Test {
 protected:
  RankStatusTest() : workers_(3) {
    for (WatchedWorker& worker : workers_) {
      worker.report.member_state = MemberState::kMember;
      worker.report.since = kStatusTime - seconds(100);
      worker.report.groups = {kWorld};
    }
  }
  FlightReport& report(int rank) { return workers_[static_cast<std::size_t>(rank)].report; }
  RecordedCall& add_call(int rank, Handle handle, Duration ago) {
    RecordedCall call;
    call.handle = handle;
    call.operation = Operation::kAllreduce;
    call.name = "x";
    call.submitted = kStatusTime - ago;
    report(rank).calls.push_back(call);
    return report(rank).calls.back();
  }
  void set_wait(int rank, Handle handle, Duration ago) {
    report(rank).wait = {.handle = handle, .since = kStatusTime - ago, .until = {}};
  }
  RankStatus status(int rank) const {
    return rank_status(JobSnapshot(workers_, kStatusTime), rank);
  }
  std::string text(int rank) const { return describe(status(rank), kStatusTime); }

  std::vector<WatchedWorker> workers_;
};

TEST_F(RankStatusTest, FollowsTheLifeOfAWorker) {
  report(0) = {};
  EXPECT_EQ(text(0), "has not called init()");
  EXPECT_EQ(status(0).since, std::nullopt);
  EXPECT_EQ(status(0).time_in_job, std::nullopt);
  report(0).member_state = MemberState::kForming;
  report(0).since = kStatusTime - milliseconds(3200);
  EXPECT_EQ(text(0), "waits 3.2 s in init()");
  EXPECT_EQ(text(1), "computes for 1 min 40 s");
  EXPECT_EQ(status(1).time_in_job, Duration(seconds(100)));
  report(1).wait = {
      .handle = 7, .since = kStatusTime - seconds(9), .until = kStatusTime - seconds(8)};
  EXPECT_EQ(text(1), "computes for 8.0 s");
  report(1).member_state = MemberState::kLeft;
  report(1).reason = "it called shutdown()\a";
  EXPECT_EQ(text(1), "has left 1 min 40 s ago (it called shutdown()\\x07)");
  EXPECT_EQ(status(1).time_in_job, std::nullopt);
  workers_[1].end = "exited with code 3";
  EXPECT_EQ(text(1), "exited with code 3");
  EXPECT_EQ(name_of(status(1).state), "ended");
}

TEST_F(RankStatusTest, AWaitingRankNamesTheRanksItWaitsFor) {
  add_call(0, 4, milliseconds(3200));
  // The call is in flight, but the program does not wait for it.
  EXPECT_EQ(text(0), "computes for 1 min 40 s");
  EXPECT_EQ(status(0).call, std::nullopt);
  set_wait(0, 4, seconds(2));
  EXPECT_EQ(text(0), "waits 3.2 s for ranks 1, 2");
  EXPECT_THAT(status(0).waits_for, ElementsAre(1, 2));
  EXPECT_EQ(status(0).call->name, "x");
  add_call(1, 1, seconds(1));
  add_call(2, 1, seconds(1));
  EXPECT_EQ(text(0), "in allreduce for 3.2 s");
  EXPECT_THAT(status(0).waits_for, IsEmpty());
}

TEST_F(RankStatusTest, TheCurrentWaitIsCounted) {
  report(0).counts = {.calls = 5, .bytes = 80, .blocked = seconds(4)};
  set_wait(0, 4, seconds(2));
  EXPECT_EQ(status(0).counts.blocked, Duration(seconds(6)));
  EXPECT_EQ(status(0).counts.calls, 5U);
  report(0).wait.until = kStatusTime - seconds(1);
  EXPECT_EQ(status(0).counts.blocked, Duration(seconds(4)));
}

TEST_F(RankStatusTest, JoinedAndStoppedRanksHaveTheirOwnStates) {
  add_call(0, 4, seconds(2)).operation = Operation::kJoin;
  set_wait(0, 4, seconds(2));
  EXPECT_EQ(text(0), "has joined 2.0 s ago");
  workers_[0].stop_signal = SIGSTOP;
  EXPECT_EQ(text(0), "is stopped (SIGSTOP)");
}

// A record may have times in the future, because it was overwritten or because the worker read the
// clock after us.
TEST_F(RankStatusTest, TimesInTheFutureCountAsZero) {
  report(0).since = kStatusTime + seconds(5);
  EXPECT_EQ(text(0), "computes for 0 ms");
  EXPECT_EQ(status(0).time_in_job, Duration());
  add_call(1, 4, -seconds(5));
  set_wait(1, 4, -seconds(5));
  EXPECT_EQ(text(1), "waits 0 ms for ranks 0, 2");
  EXPECT_EQ(status(1).counts.blocked, Duration());
}

}  // namespace
}  // namespace farandole
