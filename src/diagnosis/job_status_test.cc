#include "diagnosis/job_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>

#include "base/visible_text.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr TimePoint kJobTime{seconds(10'000)};

JobStatus job_with(std::vector<RankStatus> ranks) {
  const auto size = static_cast<int>(ranks.size());
  return {.pid = 4711,
          .host = "node7",
          .command = "python train.py",
          .started = kJobTime - seconds(123),
          .read_at = kJobTime,
          .size = size,
          .local_size = size,
          .ranks = std::move(ranks)};
}

RankStatus status_of_waiting_rank(int rank, const std::string& name) {
  RankStatus status;
  status.pid = 4720;
  status.state = RankState::kWaits;
  status.since = kJobTime - milliseconds(3200);
  status.call.emplace();
  status.call->operation = Operation::kAllreduce;
  status.call->dtype = DType::kFloat32;
  status.call->elements = 1234;
  status.call->name = name;
  status.waits_for = {rank};
  status.counts = {.calls = 1204, .bytes = 1'288'490'189, .blocked = milliseconds(12'300)};
  status.time_in_job = seconds(123);
  return status;
}

TEST(JobStatus, ShowsTheRanksAndTheCallsThatWait) {
  RankStatus computing_rank;
  computing_rank.pid = 4722;
  computing_rank.state = RankState::kComputes;
  computing_rank.since = kJobTime - milliseconds(3400);
  computing_rank.counts = {.calls = 1203, .bytes = 1'287'000'000, .blocked = milliseconds(140)};
  computing_rank.time_in_job = seconds(123);
  RankStatus ended_rank;
  ended_rank.pid = 4723;
  ended_rank.state = RankState::kEnded;
  ended_rank.reason = "exited with code 0";
  ended_rank.counts = {.calls = 7, .bytes = 800, .blocked = seconds(7200)};
  const auto job = job_with({status_of_waiting_rank(2, "grad"), status_of_waiting_rank(2, "grad"),
                             computing_rank, ended_rank});
  EXPECT_THAT(
      job_table(job, {}),
      ElementsAre("job 4711 on node7: 4 ranks, for 2 min 3 s", "  python train.py",
                  "rank     pid      calls    bytes   waited share  now",
                  "   0    4720      1,204  1.2 GiB   12.3 s  10 %  waits 3.2 s for rank 2",
                  "   1    4720      1,204  1.2 GiB   12.3 s  10 %  waits 3.2 s for rank 2",
                  "   2    4722      1,203  1.2 GiB    0.1 s   0 %  computes for 3.4 s",
                  "   3    4723          7    800 B    2.0 h     –  exited with code 0",
                  "ranks 0, 1 wait for rank 2 in allreduce `grad` (float32, 1,234 elements)"));
}

TEST(JobStatus, HasAColumnOfCoresIfARankIsBound) {
  auto job = job_with({status_of_waiting_rank(1, "grad"), status_of_waiting_rank(0, "grad")});
  job.ranks[0].cores = "0-3,8-11";
  const auto lines = job_table(job, {});
  EXPECT_EQ(lines.at(2), "rank cores        pid      calls    bytes   waited share  now");
  EXPECT_EQ(lines.at(3),
            "   0 0-3,8-11    4720      1,204  1.2 GiB   12.3 s  10 %  waits 3.2 s for rank 1");
  EXPECT_EQ(lines.at(4),
            "   1             4720      1,204  1.2 GiB   12.3 s  10 %  waits 3.2 s for rank 0");
}

TEST(JobStatus, HasAColumnOfHostsIfThereAreSeveral) {
  auto job = job_with({status_of_waiting_rank(1, "grad"), status_of_waiting_rank(0, "loss")});
  job.local_size = 1;
  job.ranks[0].host = "a";
  job.ranks[1].host = "host-7";
  EXPECT_THAT(
      job_table(job, {}),
      ElementsAre("job 4711 on node7: 2 ranks, for 2 min 3 s", "  python train.py",
                  "rank host       pid      calls    bytes   waited share  now",
                  "   0 a         4720      1,204  1.2 GiB   12.3 s  10 %  waits 3.2 s for rank 1",
                  "   1 host-7    4720      1,204  1.2 GiB   12.3 s  10 %  waits 3.2 s for rank 0",
                  ::testing::_));
}

TEST(JobStatus, ANodeShowsItsRanksAndTheSizeOfTheJob) {
  auto job = job_with({status_of_waiting_rank(1, "grad"), status_of_waiting_rank(0, "loss")});
  job.size = 8;
  job.first_rank = 2;
  EXPECT_EQ(job_table(job, {}).front(), "job 4711 on node7: ranks 2, 3 of 8, for 2 min 3 s");
  job.ranks.clear();
  EXPECT_EQ(job_table(job, {}).front(), "job 4711 on node7: 8 ranks on other hosts, for 2 min 3 s");
}

TEST(JobStatus, LongTextsAreCutAndControlCharactersEscaped) {
  auto job = job_with({status_of_waiting_rank(2, std::string(60, 'n') + "\x1b[31m")});
  job.command = "sh -c 'echo \x1b]0;title\a'" + std::string(200, 'x');
  job.ranks[0].waits_for = {1, 3, 5, 7, 9, 11, 13};
  job.ranks[0].counts = {.calls = 9'999'999, .bytes = 1ULL << 60U, .blocked = seconds(5000)};
  for (const int columns : {60, 80, 100}) {
    for (const auto& line : job_table(job, {.columns = columns})) {
      EXPECT_LE(columns_of(line), columns) << line;
      EXPECT_EQ(line.find('\x1b'), std::string::npos);
    }
  }
  EXPECT_EQ(job_table(job, {})[3],
            "   0    4720  9,999,999  1.0 EiB   83 min 100 %  waits 3.2 s for ranks 1, 3, 5,…");
}

TEST(JobStatus, WaitingAndStoppedRanksAreColored) {
  auto job = job_with({status_of_waiting_rank(1, "x")});
  job.ranks[0].counts = {};
  job.ranks[0].time_in_job = Duration();
  EXPECT_EQ(job_table(job, {.has_colors = true})[3],
            "   0    4720          0      0 B    0.0 s     –  \x1b[33mwaits 3.2 s for rank "
            "1\x1b[0m");
  job.ranks[0].state = RankState::kStopped;
  job.ranks[0].reason = "SIGSTOP";
  EXPECT_EQ(job_table(job, {.has_colors = true})[3],
            "   0    4720          0      0 B    0.0 s     –  \x1b[31mis stopped "
            "(SIGSTOP)\x1b[0m");
}

}  // namespace
}  // namespace farandole
