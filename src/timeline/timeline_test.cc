#include "timeline/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace farandole {
namespace {

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int count(const std::string& text, std::string_view part) {
  int found = 0;
  for (auto place = text.find(part); place != std::string::npos; place = text.find(part, place + 1))
    ++found;
  return found;
}

class TimelineTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "trace.json") const { return folder_ + "/" + name; }
  Timeline::Options options(int rank, int size, std::size_t bytes_max = 64 << 20) {
    return {.rank = {.rank = rank, .size = size, .pid = 100 + rank}, .bytes_max = bytes_max};
  }
  void record_call(Timeline& timeline, Handle handle, const std::string& name) {
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = name;
    timeline.record_submitted(handle, submission, clock_.now());
    timeline.record_running(handle, clock_.now());
    timeline.record_finished(handle, true, clock_.now());
  }

  std::string folder_ = "/tmp/farandole-timeline-XXXXXX";
  SystemClock clock_;
  Log log_{{.level = Level::kWarning}};
  const Timeline::Job job_{.name = "job"};
};

// The rank of the second host opens the file first. The clock of the second host is 5 s behind the
// clock of the first host.
TEST_F(TimelineTest, RanksOnTwoHostsUseTheTimesOfOneClock) {
  SimulatedClock first_clock;
  SimulatedClock second_clock;
  second_clock.advance(std::chrono::seconds(1));
  first_clock.advance(std::chrono::seconds(6));
  Timeline first(options(0, 2), first_clock, log_);
  Timeline second(options(1, 2), second_clock, log_);
  Timeline::Job job = job_;
  job.clock_offset = std::chrono::seconds(5);
  job.clock_error = std::chrono::microseconds(12);
  job.zero = TimePoint(std::chrono::seconds(4));
  ASSERT_TRUE(second.start(path(), job).ok());
  ASSERT_TRUE(first.start(path(), job_).ok());
  Submission submission;
  submission.operation = Operation::kAllreduce;
  for (const std::string name : {"a", "b"}) {
    for (SimulatedClock* clock : {&first_clock, &second_clock})
      clock->advance(std::chrono::milliseconds(1));
    submission.name = name;
    first.record_submitted(1, submission, first_clock.now());
    first.record_finished(1, true, first_clock.now());
    second.record_submitted(1, submission, second_clock.now());
    second.record_finished(1, true, second_clock.now());
  }
  first.stop();
  second.stop();
  const std::string text = content(path());
  // At each time, each of the two ranks has one call with two phases. Each phase has a begin and an
  // end, so there are eight events.
  EXPECT_EQ(count(text, "\"ts\":2001000.000"), 8) << text;
  EXPECT_EQ(count(text, "\"ts\":2002000.000"), 8) << text;
  EXPECT_EQ(count(text, "\"labels\":\"clock ± 13 µs\""), 1) << text;
}

TEST_F(TimelineTest, RecordsEventsWhileItIsOn) {
  Timeline timeline(options(0, 1), clock_, log_);
  record_call(timeline, 1, "before");
  timeline.stop();
  ASSERT_TRUE(timeline.start(path(), job_).ok());
  record_call(timeline, 2, "during");
  timeline.stop();
  record_call(timeline, 3, "after");
  const std::string text = content(path());
  EXPECT_EQ(count(text, "before") + count(text, "after"), 0);
  EXPECT_EQ(count(text, "during"), 1);
  EXPECT_EQ(count(text, "\"ph\":\"B\""), 2);
  EXPECT_TRUE(text.ends_with(kTraceEnd));
  timeline.stop();
  EXPECT_EQ(content(path()), text);
}

TEST_F(TimelineTest, ThreadsOfAllRanksShareTheFile) {
  constexpr int kRanks = 4;
  constexpr int kCalls = 5000;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      Timeline timeline(options(rank, kRanks), clock_, log_);
      ASSERT_TRUE(timeline.start(path(), job_).ok());
      for (int i = 1; i <= kCalls; ++i)
        record_call(timeline, static_cast<Handle>(i), "t" + std::to_string(i % 7));
    });
  for (auto& thread : threads) thread.join();
  const std::string text = content(path());
  EXPECT_EQ(count(text, "\"name\":\"ALLREDUCE\""), kRanks * kCalls);
  EXPECT_EQ(count(text, "\"ph\":\"B\""), count(text, "\"ph\":\"E\""));
  EXPECT_EQ(count(text, kTraceEnd), 1);
  EXPECT_TRUE(text.ends_with(kTraceEnd));
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(count(text, "\"rank " + std::to_string(rank) + " (pid"), 1);
}

TEST_F(TimelineTest, CanContinueInAnotherOrTheSameFile) {
  Timeline timeline(options(0, 1), clock_, log_);
  ASSERT_TRUE(timeline.start(path("a"), job_).ok());
  record_call(timeline, 1, "one");
  ASSERT_TRUE(timeline.start(path("b"), job_).ok());
  record_call(timeline, 2, "two");
  ASSERT_TRUE(timeline.start(path("a"), job_).ok());
  record_call(timeline, 3, "three");
  timeline.stop();
  EXPECT_EQ(count(content(path("a")), "one") + count(content(path("a")), "three"), 2);
  EXPECT_EQ(count(content(path("a")), kTraceEnd), 1);
  EXPECT_EQ(count(content(path("b")), "two\""), 1);
  EXPECT_TRUE(content(path("b")).ends_with(kTraceEnd));
}

TEST_F(TimelineTest, ContinuesInTheNextGroupOfAnElasticJob) {
  const auto shared_state = std::make_shared<Timeline::SharedState>(
      TraceText({.rank = 3, .pid = 103, .elastic_worker = 3}));
  Timeline::Options options{.rank = {}, .bytes_max = 64 << 20, .shared_state = shared_state};
  for (const std::int64_t epoch : {1, 2}) {
    Timeline timeline(options, clock_, log_);
    const std::string name = epoch == 1 ? path() : shared_state->path;
    Timeline::Job job = job_;
    job.group = {.epoch = epoch, .rank = 0, .size = 1};
    ASSERT_TRUE(timeline.start(name, job, epoch == 1).ok());
    EXPECT_TRUE(shared_state->path == path() && shared_state->mark_cycles == (epoch == 1));
    record_call(timeline, 1, "a");
    if (epoch == 2) timeline.stop();
  }
  EXPECT_EQ(shared_state->path, "") << "stop() also ends the timeline for later groups";
  const std::string text = content(path());
  EXPECT_EQ(count(text, R"("name":"GROUP")"), 2);
  EXPECT_EQ(count(text, R"("args":{"epoch":2,"rank":0,"size":1,"pid":103})"), 1);
  EXPECT_EQ(count(text, R"("name":"ALLREDUCE")"), 2);
}

TEST_F(TimelineTest, TheSizeLimitIsForAllRanksTogether) {
  constexpr std::size_t kBytes = 100'000;
  Timeline first(options(0, 2, kBytes), clock_, log_);
  Timeline other(options(1, 2, kBytes), clock_, log_);
  for (int times = 0; times < 3; ++times) {  // a restart must not give more room
    ASSERT_TRUE(first.start(path(), job_).ok());
    ASSERT_TRUE(other.start(path(), job_).ok());
    for (Handle handle = 1; handle <= 3000; ++handle) record_call(first, handle, "a");
    for (Handle handle = 1; handle <= 3000; ++handle) record_call(other, handle, "a");
    first.stop();
    other.stop();
  }
  const std::string text = content(path());
  EXPECT_LT(text.size(), kBytes + 7000);
  EXPECT_GT(text.size(), kBytes * 3 / 4);
  EXPECT_GE(count(text, "TIMELINE_IS_FULL"), 2);
  EXPECT_GE(count(text, "CALLS_LEFT_OUT"), 2);
}

TEST_F(TimelineTest, AnErrorIsReturnedAndCallsContinue) {
  Timeline timeline(options(0, 1), clock_, log_);
  EXPECT_EQ(timeline.start(path("no/trace"), job_),
            Status::fix_call("the timeline cannot be written to `" + path("no/trace") +
                             "`: No such file or directory"));
  record_call(timeline, 1, "a");
  ASSERT_TRUE(timeline.start(path(), job_).ok());
  timeline.close();
  EXPECT_EQ(timeline.start(path(), job_),
            Status::fix_call("the engine is shut down; call init() before a timeline is started"));
}

TEST_F(TimelineTest, WritesEventsBeforeItIsStopped) {
  Timeline timeline(options(0, 1), clock_, log_);
  ASSERT_TRUE(timeline.start(path(), job_).ok());
  for (int times = 1; times <= 2; ++times) {
    record_call(timeline, static_cast<Handle>(times), "a");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (count(content(path()), "\"name\":\"ALLREDUCE\"") < times &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(count(content(path()), "\"name\":\"ALLREDUCE\""), times);
  }
}

}  // namespace
}  // namespace farandole
