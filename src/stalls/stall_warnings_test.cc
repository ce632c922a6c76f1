#include "stalls/stall_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/memory_store.h"
#include "timeline/flight_record.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr milliseconds kWarnAfter(400);
constexpr std::chrono::seconds kWarningTimeout(60);

std::shared_ptr<Segment> new_flight_record() {
  return Segment::create("farandole-flight-record", FlightRecorder::bytes_needed()).value();
}

Descriptor open_process(pid_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// The ranks of a job. The flight record of each rank says from the start that the rank is a member
// of the group. The process of each rank is this process, unless a test sets another one.
class WatchedJob {
 public:
  // `hosts` has the host of each rank.
  explicit WatchedJob(const std::vector<int>& hosts) {
    for (const int host : hosts) {
      ranks_.push_back({.host = host,
                        .host_name = host == 0 ? "fox" : "hen",
                        .pid = ::getpid(),
                        .addresses = {}});
      pids_.push_back(::getpid());
      records_.push_back(new_flight_record());
      recorders_.push_back(std::make_unique<FlightRecorder>(records_.back()->data()));
      recorders_.back()->begin(steady_clock::now());
      recorders_.back()->record_membership(steady_clock::now());
    }
  }

  void use_process(int rank, pid_t pid) { pids_[static_cast<std::size_t>(rank)] = pid; }

  // The formation as the lowest rank of a host knows it.
  Formation formation_of(int host) const {
    Formation formation;
    formation.epoch = 1;
    formation.ranks = ranks_;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].host != host) continue;
      if (formation.peers.empty()) formation.topology.rank = static_cast<int>(rank);
      formation.peers.push_back({.rank = static_cast<int>(rank),
                                 .pid = pids_[rank],
                                 .pidfd = open_process(pids_[rank]),
                                 .heap = nullptr,
                                 .flight_record = records_[rank]});
    }
    return formation;
  }

  void submit(int rank, const std::string& name) {
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = name;
    submission.shape = {3};
    recorder(rank).record_submitted(1, submission, std::hash<std::string>()(name),
                                    steady_clock::now());
    recorder(rank).record_blocked(1, steady_clock::now());
  }
  void finish(int rank) {
    recorder(rank).record_unblocked(steady_clock::now());
    recorder(rank).record_finished(1, true, steady_clock::now());
  }

 private:
  FlightRecorder& recorder(int rank) { return *recorders_[static_cast<std::size_t>(rank)]; }

  std::vector<RankInfo> ranks_;
  std::vector<pid_t> pids_;
  std::vector<std::shared_ptr<Segment>> records_;
  std::vector<std::unique_ptr<FlightRecorder>> recorders_;
};

// The lines that the user sees.
class ShownLines {
 public:
  StallWarnings::ShowLine show_function() {
    return [this](const std::string& line) {
      lines_.lock()->push_back(line);
      lines_.notify_all();
    };
  }
  // Waits until a line contains `expected_text`. Returns all lines.
  std::string wait_for(const std::string& expected_text) {
    const auto any_line_has_text = [&](const std::vector<std::string>& lines) {
      return std::ranges::any_of(lines, [&](const std::string& line) {
        return line.find(expected_text) != std::string::npos;
      });
    };
    auto lines = lines_.lock();
    EXPECT_TRUE(lines.wait_until(steady_clock::now() + kWarningTimeout, any_line_has_text))
        << expected_text;
    std::string text;
    for (const std::string& line : *lines) text += line + "\n";
    return text;
  }
  std::size_t count() { return lines_.lock()->size(); }

 private:
  Guarded<std::vector<std::string>> lines_;
};

TEST(StallWarningsTest, NameTheRankThatIsLateAndSayWhenTheCallGoesOn) {
  WatchedJob job({0, 0});
  const Formation formation = job.formation_of(0);
  ShownLines lines;
  StallWarnings warnings(formation, nullptr, kWarnAfter, lines.show_function());
  ASSERT_TRUE(warnings.start().ok());
  job.submit(0, "grad");
  const std::string advice =
      "to see where rank 1 is, run `py-spy dump --pid " + std::to_string(::getpid()) + "` on fox";
  EXPECT_THAT(lines.wait_for(advice),
              HasSubstr("stalled: allreduce `grad` (uint8, 3 elements) waits for rank 1"));
  job.submit(1, "grad");
  job.finish(1);
  job.finish(0);
  lines.wait_for("allreduce `grad` went on after");
}

TEST(StallWarningsTest, SayNothingAboutCallsThatFinish) {
  // If the calls take longer than kWarnAfter, a warning is right. Then the test repeats the job.
  for (bool finished_in_time = false; !finished_in_time;) {
    WatchedJob job({0, 0});
    const Formation formation = job.formation_of(0);
    ShownLines lines;
    StallWarnings warnings(formation, nullptr, kWarnAfter, lines.show_function());
    ASSERT_TRUE(warnings.start().ok());
    const auto begin = steady_clock::now();
    job.submit(0, "grad");
    job.submit(1, "grad");
    job.finish(0);
    job.finish(1);
    finished_in_time = steady_clock::now() - begin < kWarnAfter;
    std::this_thread::sleep_for(3 * kWarnAfter);
    warnings.stop();
    if (finished_in_time) EXPECT_EQ(lines.count(), 0u);
  }
}

TEST(StallWarningsTest, NameARankThatASignalHasStopped) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  ::waitpid(child, nullptr, WUNTRACED);
  WatchedJob job({0, 0});
  job.use_process(1, child);
  const Formation formation = job.formation_of(0);
  ShownLines lines;
  StallWarnings warnings(formation, nullptr, kWarnAfter, lines.show_function());
  ASSERT_TRUE(warnings.start().ok());
  job.submit(0, "grad");
  lines.wait_for("is stopped (SIGSTOP); `kill -CONT " + std::to_string(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(StallWarningsTest, NameALateRankOfAnotherHost) {
  WatchedJob job({0, 0, 1, 1});
  const Formation formation_of_host_0 = job.formation_of(0);
  const Formation formation_of_host_1 = job.formation_of(1);
  MemoryStore store;
  ShownLines lines;
  ShownLines other_lines;
  StallWarnings warnings_on_host_0(formation_of_host_0, &store, kWarnAfter, lines.show_function());
  StallWarnings warnings_on_host_1(formation_of_host_1, &store, kWarnAfter,
                                   other_lines.show_function());
  ASSERT_TRUE(warnings_on_host_0.start().ok());
  ASSERT_TRUE(warnings_on_host_1.start().ok());
  for (const int rank : {0, 1, 2}) job.submit(rank, "grad");
  // The first warning may come before the report of rank 2 arrives.
  lines.wait_for("stalled: allreduce `grad` (uint8, 3 elements) waits for rank 3");
  lines.wait_for("ranks 0-2 have been waiting in it for");
  EXPECT_THAT(lines.wait_for("to see where rank 3 is"), HasSubstr("` on hen"));
  EXPECT_EQ(other_lines.count(), 0u);
}

TEST(StallWarningsTest, NameRanksThatDoNotReportAndGoOnWhenTheyDo) {
  WatchedJob job({0, 1, 1});
  const Formation formation_of_host_0 = job.formation_of(0);
  const Formation formation_of_host_1 = job.formation_of(1);
  MemoryStore store;
  ShownLines lines;
  StallWarnings warnings_on_host_0(formation_of_host_0, &store, kWarnAfter, lines.show_function());
  ASSERT_TRUE(warnings_on_host_0.start().ok());
  job.submit(0, "grad");
  EXPECT_THAT(
      lines.wait_for("not reported"),
      HasSubstr("ranks 1, 2 (hen) have not reported for 800 ms, so it is unknown which ranks "
                "wait for which"));
  EXPECT_EQ(lines.count(), 1u);
  StallWarnings warnings_on_host_1(formation_of_host_1, &store, kWarnAfter, lines.show_function());
  ASSERT_TRUE(warnings_on_host_1.start().ok());
  lines.wait_for("stalled: allreduce `grad` (uint8, 3 elements) waits for ranks 1, 2");
}

// A Store that fails, and counts the calls.
class FailingStore : public Store {
 public:
  Status set(const std::string& /*key*/, Bytes /*value*/) override {
    ++*sets_.lock();
    sets_.notify_all();
    return Status::stop("it fails");
  }
  Result<StoreValues> wait_for_all(const std::vector<std::string>& /*keys*/,
                                   const std::string& /*unless*/,
                                   const WaitLimit& /*limit*/) override {
    return Status::stop("it fails");
  }
  Result<std::int64_t> add(const std::string& /*key*/, std::int64_t /*delta*/) override {
    return Status::stop("it fails");
  }
  Status remove_all(const std::vector<std::string>& /*keys*/) override {
    ++removals_;
    return {};
  }
  Result<TimePoint> clock() override { return Status::stop("it fails"); }

  void wait_for_a_set() {
    auto sets = sets_.lock();
    EXPECT_TRUE(sets.wait_until(steady_clock::now() + kWarningTimeout,
                                [](int calls) { return calls > 0; }));
  }
  int set_count() { return *sets_.lock(); }
  int removal_count() const { return removals_; }

 private:
  Guarded<int> sets_{0};
  std::atomic<int> removals_ = 0;
};

// The Store of a stopped process: its calls end only when they are interrupted.
class SilentStore final : public FailingStore {
 public:
  Status replace(const std::string& key, Bytes value, const WaitLimit& limit) override {
    (void)set(key, std::move(value));
    const auto deadline = steady_clock::now() + kWarningTimeout;
    while (!limit.interrupted() && steady_clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(limit.interrupted());
    return Status::retry("interrupted");
  }
};

// Rank 1 reports to the Store, and ends its thread after the first report has begun.
void stop_during_first_report(std::vector<int> hosts, FailingStore& store) {
  WatchedJob job(std::move(hosts));
  const Formation formation_of_host_1 = job.formation_of(1);
  ShownLines lines;
  StallWarnings warnings_on_host_1(formation_of_host_1, &store, kWarnAfter, lines.show_function());
  ASSERT_TRUE(warnings_on_host_1.start().ok());
  store.wait_for_a_set();
  warnings_on_host_1.stop();
}

// After a failure, the engine makes no further call to the Store in this check. With a slow Store,
// a call for each rank would delay the end of the job.
TEST(StallWarningsTest, EndACheckAfterAFailureOfTheStore) {
  FailingStore store;
  stop_during_first_report({0, 1, 1, 1, 1}, store);
  EXPECT_EQ(store.set_count(),
            store.removal_count());  // each report calls remove_all() and set() once
}

TEST(StallWarningsTest, DoNotWaitForAStoreThatDoesNotAnswer) {
  SilentStore store;
  stop_during_first_report({0, 1, 1}, store);
  EXPECT_EQ(store.set_count(), 1);
  EXPECT_EQ(store.removal_count(), 0);
}

TEST(StallWarningsTest, LeaveNoReportsBehind) {
  WatchedJob job({0, 1});
  const Formation formation_of_host_1 = job.formation_of(1);
  MemoryStore store;
  ShownLines lines;
  StallWarnings warnings_on_host_1(formation_of_host_1, &store, kWarnAfter, lines.show_function());
  ASSERT_TRUE(warnings_on_host_1.start().ok());
  const std::function<bool()> never_interrupted;
  const WaitLimit limit{steady_clock::now() + kWarningTimeout, never_interrupted};
  EXPECT_TRUE(store.wait("epoch/1/report/1", limit).ok());
  warnings_on_host_1.stop();
  EXPECT_FALSE(store.wait("epoch/1/report/1", {TimePoint{}, never_interrupted}).ok());
}

}  // namespace
}  // namespace farandole
