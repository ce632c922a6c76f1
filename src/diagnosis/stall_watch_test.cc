#include "diagnosis/stall_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class StallWatchTest : public ::testing::Test {
 protected:
  StallWatchTest() {
    for (WatchedWorker& worker : workers_) worker.report.member_state = MemberState::kMember;
    workers_[0].report.calls.resize(1);
    call().handle = 7;
    call().operation = Operation::kBarrier;
    call().name = "b";
    call().submitted = now_;
  }
  RecordedCall& call() { return workers_[0].report.calls.front(); }
  StallWatch::Report tick_after(int time) {
    now_ += seconds(time);
    return watch_.tick(workers_, now_);
  }

  StallWatch watch_{seconds(10)};
  TimePoint now_{seconds(1000)};
  std::vector<WatchedWorker> workers_ = std::vector<WatchedWorker>(2);
};

TEST_F(StallWatchTest, WarnsAtOneTwoAndFourTimesTheLimit) {
  EXPECT_THAT(tick_after(9).lines, IsEmpty());
  const auto first = tick_after(1);
  EXPECT_THAT(first.lines[0], HasSubstr("barrier `b` waits for rank 1"));
  EXPECT_THAT(first.unexplained_ranks, ElementsAre(1));
  EXPECT_THAT(tick_after(9).lines, IsEmpty());
  EXPECT_THAT(tick_after(1).lines[1], HasSubstr("rank 0 has been waiting in it for 20.0 s"));
  EXPECT_THAT(tick_after(19).lines, IsEmpty());
  EXPECT_THAT(tick_after(1).lines[1], HasSubstr("rank 0 has been waiting in it for 40.0 s"));
  EXPECT_THAT(tick_after(39).lines, IsEmpty());
}

// Two ranks wait for rank 2. Their times come from different hosts, so it varies which of them
// seems to have waited for longer.
TEST_F(StallWatchTest, AStallIsRecognizedIfAnotherRankSeemsToHaveWaitedLonger) {
  workers_.push_back(workers_[1]);
  workers_[1] = workers_[0];
  int warnings = 0;
  for (int second = 1; second <= 45; ++second) {
    workers_[0].report.calls[0].submitted = TimePoint(seconds(1000)) + milliseconds(second % 2);
    if (!tick_after(1).lines.empty()) ++warnings;
  }
  EXPECT_EQ(warnings, 3) << "after 10, 20 and 40 s";
}

TEST_F(StallWatchTest, ALimitOfZeroMeansNoWarnings) {
  EXPECT_FALSE(StallWatch(seconds(0)).is_on());
  EXPECT_TRUE(watch_.is_on());
  watch_.set_warn_after(0);
  EXPECT_FALSE(watch_.is_on());
  watch_.set_warn_after(4);
  EXPECT_TRUE(watch_.is_on());
  EXPECT_EQ(watch_.interval(), seconds(1));
}

TEST_F(StallWatchTest, AStallIsReportedAgainIfTheLimitChanges) {
  EXPECT_THAT(tick_after(10).lines, Not(IsEmpty()));
  EXPECT_THAT(tick_after(1).lines, IsEmpty());
  watch_.set_warn_after(10);  // no change
  EXPECT_THAT(tick_after(1).lines, IsEmpty());
  watch_.set_warn_after(2);
  EXPECT_THAT(tick_after(1).lines, Not(IsEmpty()));
  watch_.set_warn_after(std::numeric_limits<std::int64_t>::max());  // limited to the knob's maximum
  EXPECT_EQ(watch_.interval(), std::chrono::hours(42));
}

TEST_F(StallWatchTest, ReportsThatTheCallContinued) {
  ASSERT_FALSE(tick_after(10).lines.empty());
  call().state = CallState::kDone;
  EXPECT_THAT(tick_after(2).lines, ElementsAre("barrier `b` went on after 12.0 s"));
  EXPECT_THAT(tick_after(2).lines, IsEmpty());
  EXPECT_EQ(watch_.interval(), std::chrono::milliseconds(2500));
}

TEST_F(StallWatchTest, ACallWhoseLineWasReusedHasContinued) {
  ASSERT_FALSE(tick_after(10).lines.empty());
  call().handle = 7 + kFlightCalls;
  call().submitted = now_;
  EXPECT_THAT(tick_after(1).lines, ElementsAre(HasSubstr("went on")));
}

TEST_F(StallWatchTest, AFailedCallIsNotReportedAsContinued) {
  ASSERT_FALSE(tick_after(10).lines.empty());
  call().state = CallState::kFailed;
  EXPECT_THAT(tick_after(2).lines, IsEmpty());
}

TEST_F(StallWatchTest, ACallOfAnEndedWorkerIsNotReported) {
  ASSERT_FALSE(tick_after(10).lines.empty());
  workers_[0].end = "exited with code 1";
  EXPECT_THAT(tick_after(2).lines, IsEmpty());
}

TEST_F(StallWatchTest, ARankThatHasLeftAnElasticJobIsNotReported) {
  std::swap(workers_[0], workers_[1]);
  EXPECT_THAT(tick_after(10).lines, Not(IsEmpty()));
  workers_.pop_back();
  EXPECT_THAT(tick_after(1).lines, IsEmpty());
  workers_.push_back(workers_[0]);
  EXPECT_THAT(tick_after(1).lines, IsEmpty());
}

TEST_F(StallWatchTest, AStallInAnotherCallIsReportedAsANewStall) {
  ASSERT_FALSE(tick_after(10).lines.empty());
  call().state = CallState::kDone;
  workers_[0].report.calls.push_back(call());
  RecordedCall& second = workers_[0].report.calls.back();
  second.handle = 8;
  second.name = "c";
  second.state = CallState::kWaiting;
  second.submitted = now_;
  const auto report = tick_after(10);
  EXPECT_THAT(report.lines[0], HasSubstr("`b` went on"));
  EXPECT_THAT(report.lines[1], HasSubstr("`c` waits for rank 1"));
}

TEST_F(StallWatchTest, ReportsThatInitContinued) {
  workers_[0].report = {};
  workers_[0].report.member_state = MemberState::kForming;
  workers_[0].report.since = now_;
  workers_[1].report = {};
  EXPECT_EQ(tick_after(10).lines[0], "stalled: init() waits for rank 1");
  for (WatchedWorker& worker : workers_) worker.report.member_state = MemberState::kMember;
  EXPECT_THAT(tick_after(1).lines, ElementsAre("init() went on after 11.0 s"));
}

TEST_F(StallWatchTest, WaitingTimeRestartsWhenTheJobContinues) {
  now_ += seconds(60);
  watch_.job_continued(now_);
  EXPECT_THAT(tick_after(9).lines, IsEmpty());
  EXPECT_THAT(tick_after(1).lines[1], HasSubstr("rank 0 has been waiting in it for 10.0 s"));
}

}  // namespace
}  // namespace farandole
