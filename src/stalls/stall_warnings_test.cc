#include "stalls/stall_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
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
constexpr std::chrono::seconds kWarningGuard(60);

std::shared_ptr<Segment> new_record() {
  return Segment::create("farandole-flight-record", FlightRecorder::bytes_needed()).value();
}

Descriptor open_process(pid_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// The ranks of a job. All of them are members from the start of their recorders. Each rank's
// process is this one, unless a test says otherwise.
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
      records_.push_back(new_record());
      recorders_.push_back(std::make_unique<FlightRecorder>(records_.back()->data()));
      recorders_.back()->begin(steady_clock::now());
      recorders_.back()->record_formed(steady_clock::now());
    }
  }

  void use_process(int rank, pid_t pid) { pids_[static_cast<std::size_t>(rank)] = pid; }

  // What the lowest rank of a host knows.
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
  StallWarnings::Show show() {
    return [this](const std::string& line) {
      lines_.lock()->push_back(line);
      lines_.notify_all();
    };
  }
  // Waits until a line contains `part`. Returns all lines.
  std::string wait_for(const std::string& part) {
    const auto has_part = [&](const std::vector<std::string>& lines) {
      return std::ranges::any_of(
          lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
    };
    auto lines = lines_.lock();
    EXPECT_TRUE(lines.wait_until(steady_clock::now() + kWarningGuard, has_part)) << part;
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
  StallWarnings warnings(formation, nullptr, kWarnAfter, lines.show());
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
  WatchedJob job({0, 0});
  const Formation formation = job.formation_of(0);
  ShownLines lines;
  StallWarnings warnings(formation, nullptr, kWarnAfter, lines.show());
  ASSERT_TRUE(warnings.start().ok());
  job.submit(0, "grad");
  job.submit(1, "grad");
  job.finish(0);
  job.finish(1);
  std::this_thread::sleep_for(3 * kWarnAfter);
  warnings.stop();
  EXPECT_EQ(lines.count(), 0u);
}

TEST(StallWarningsTest, NameARankThatASignalHasStopped) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  WatchedJob job({0, 0});
  job.use_process(1, child);
  const Formation formation = job.formation_of(0);
  ShownLines lines;
  StallWarnings warnings(formation, nullptr, kWarnAfter, lines.show());
  ASSERT_TRUE(warnings.start().ok());
  job.submit(0, "grad");
  lines.wait_for("is stopped (SIGSTOP); `kill -CONT " + std::to_string(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(StallWarningsTest, NameALateRankOfAnotherHost) {
  WatchedJob job({0, 0, 1, 1});
  const Formation here = job.formation_of(0);
  const Formation there = job.formation_of(1);
  MemoryStore store;
  ShownLines lines;
  ShownLines other_lines;
  StallWarnings judge(here, &store, kWarnAfter, lines.show());
  StallWarnings reporter(there, &store, kWarnAfter, other_lines.show());
  ASSERT_TRUE(judge.start().ok());
  ASSERT_TRUE(reporter.start().ok());
  for (const int rank : {0, 1, 2}) job.submit(rank, "grad");
  const std::string text = lines.wait_for("to see where rank 3 is");
  EXPECT_THAT(text, HasSubstr("stalled: allreduce `grad` (uint8, 3 elements) waits for rank 3"));
  EXPECT_THAT(text, HasSubstr("ranks 0-2 have been waiting in it for"));
  EXPECT_THAT(text, HasSubstr("` on hen"));
  EXPECT_EQ(other_lines.count(), 0u);
}

TEST(StallWarningsTest, NameRanksThatDoNotReportAndGoOnWhenTheyDo) {
  WatchedJob job({0, 1, 1});
  const Formation here = job.formation_of(0);
  const Formation there = job.formation_of(1);
  MemoryStore store;
  ShownLines lines;
  StallWarnings judge(here, &store, kWarnAfter, lines.show());
  ASSERT_TRUE(judge.start().ok());
  job.submit(0, "grad");
  EXPECT_THAT(
      lines.wait_for("not reported"),
      HasSubstr("ranks 1, 2 (hen) have not reported for 800 ms, so nobody can say who waits "
                "for whom"));
  EXPECT_EQ(lines.count(), 1u);
  StallWarnings reporter(there, &store, kWarnAfter, lines.show());
  ASSERT_TRUE(reporter.start().ok());
  lines.wait_for("stalled: allreduce `grad` (uint8, 3 elements) waits for ranks 1, 2");
}

TEST(StallWarningsTest, LeaveNoReportsBehind) {
  WatchedJob job({0, 1});
  const Formation there = job.formation_of(1);
  MemoryStore store;
  ShownLines lines;
  StallWarnings reporter(there, &store, kWarnAfter, lines.show());
  ASSERT_TRUE(reporter.start().ok());
  const std::function<bool()> never;
  const WaitLimit limit{steady_clock::now() + kWarningGuard, never};
  EXPECT_TRUE(store.wait("epoch/1/report/1", limit).ok());
  reporter.stop();
  EXPECT_FALSE(store.wait("epoch/1/report/1", {TimePoint{}, never}).ok());
}

}  // namespace
}  // namespace farandole
