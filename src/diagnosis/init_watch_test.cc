#include "diagnosis/init_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <string>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using ::testing::Optional;
using ::testing::StartsWith;

constexpr auto kOutside = MemberState::kOutside;
constexpr auto kForming = MemberState::kForming;
constexpr auto kMember = MemberState::kMember;
constexpr auto kLeft = MemberState::kLeft;
constexpr TimePoint kStart{std::chrono::seconds(1000)};

std::vector<WatchedWorker> workers(std::initializer_list<MemberState> member_states) {
  std::vector<WatchedWorker> workers_of_job;
  for (const MemberState member_state : member_states) {
    workers_of_job.emplace_back();
    workers_of_job.back().report.member_state = member_state;
  }
  return workers_of_job;
}

// Returns the warning that the watch gives at the deadline.
std::optional<std::string> warning_at_deadline(const std::vector<WatchedWorker>& job_workers) {
  InitWatch watch(static_cast<int>(job_workers.size()), kStart);
  return watch.check(job_workers, kStart + InitWatch::kTimeUntilInitMax);
}

std::optional<std::string> line_at_end(const std::vector<WatchedWorker>& job_workers) {
  return warning_of_missing_init(job_workers, 0, static_cast<int>(job_workers.size()));
}

TEST(InitWatch, WarnsOnceAfterAMinute) {
  const auto job = workers({kOutside, kMember, kOutside});
  InitWatch watch(3, kStart);
  EXPECT_EQ(watch.deadline(), kStart + std::chrono::minutes(1));
  EXPECT_EQ(watch.check(job, kStart + std::chrono::minutes(1) - milliseconds(1)), std::nullopt);
  EXPECT_EQ(watch.check(job, kStart + std::chrono::minutes(1)),
            "ranks 0, 2 have been running for a minute without calling farandole's init(); unless "
            "the program communicates through another library, each runs independently of the "
            "others");
  EXPECT_EQ(watch.deadline(), std::nullopt);
  EXPECT_EQ(watch.check(job, kStart + std::chrono::hours(1)), std::nullopt);
}

TEST(InitWatch, NamesOneRank) {
  EXPECT_EQ(warning_at_deadline(workers({kMember, kOutside})),
            "rank 1 has been running for a minute without calling farandole's init(); unless the "
            "program communicates through another library, it runs independently of the others");
}

TEST(InitWatch, IgnoresRanksThatHaveCalledInitOrEnded) {
  EXPECT_EQ(warning_at_deadline(workers({kMember, kLeft})), std::nullopt);
  auto job = workers({kOutside, kOutside});
  job[0].end = "exited with code 0";
  EXPECT_THAT(warning_at_deadline(job), Optional(StartsWith("rank 1 has")));
  job[1].end = "exited with code 0";
  EXPECT_EQ(warning_at_deadline(job), std::nullopt);
}

TEST(InitWatch, IsSilentIfOtherRanksWaitInInit) {
  auto job = workers({kOutside, kForming});
  EXPECT_EQ(warning_at_deadline(job), std::nullopt);
  job[1].end = "exited with code 0";
  EXPECT_THAT(warning_at_deadline(job), Optional(StartsWith("rank 0 has")));
}

TEST(InitWatch, ASingleWorkerNeedsNoInit) {
  EXPECT_EQ(InitWatch(1, kStart).deadline(), std::nullopt);
  EXPECT_EQ(warning_at_deadline(workers({kOutside})), std::nullopt);
  EXPECT_EQ(line_at_end(workers({kOutside})), std::nullopt);
}

TEST(InitWatch, NamesRanksThatNeverCalledInit) {
  EXPECT_EQ(line_at_end(workers({kOutside, kOutside, kOutside})),
            "no worker of this job called farandole's init(): unless the program communicates "
            "through another library, such as torch.distributed with gloo, every worker ran "
            "alone; to train together, the program must call hvd.init()");
  EXPECT_EQ(line_at_end(workers({kOutside, kLeft, kOutside})),
            "ranks 0, 2 ended without calling farandole's init() and ran independently of the "
            "others; every rank of the job must call hvd.init()");
  EXPECT_EQ(line_at_end(workers({kLeft, kMember, kForming})), std::nullopt);
}

TEST(InitWatch, NamesRanksOfTheSecondNode) {
  const auto node = workers({kOutside, kMember});
  InitWatch watch(4, kStart, 2);
  EXPECT_THAT(watch.check(node, kStart + InitWatch::kTimeUntilInitMax),
              Optional(StartsWith("rank 2 has been running")));
  EXPECT_THAT(warning_of_missing_init(node, 2, 4), Optional(StartsWith("rank 2 ended without")));
  EXPECT_THAT(warning_of_missing_init(workers({kOutside}), 3, 4),
              Optional(StartsWith("no worker of this node called")));
}

}  // namespace
}  // namespace farandole
