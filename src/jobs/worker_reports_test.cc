#include "jobs/worker_reports.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "diagnosis/worker_report.h"

namespace farandole {
namespace {

using std::chrono::seconds;

constexpr TimePoint kEncodedAt{seconds(5)};
constexpr TimePoint kReceivedAt{seconds(70)};

Bytes report_of(pid_t pid) {
  WatchedWorker worker{.host = "hen", .pid = pid, .report = {}, .end = ""};
  worker.report.since = kEncodedAt - seconds(2);
  return encode_worker(worker, kEncodedAt);
}

TEST(WorkerReports, KeepTheLastReportOfEachRank) {
  const auto reports = *WorkerReports::create(3);
  reports->store(1, report_of(7), kReceivedAt - seconds(1));
  reports->store(1, report_of(8), kReceivedAt);
  reports->store(2, report_of(9), kReceivedAt);
  EXPECT_FALSE(read_worker_report(reports->memory(), 0).has_value());
  const auto worker = read_worker_report(reports->memory(), 1);
  ASSERT_TRUE(worker.has_value());
  EXPECT_EQ(worker->host, "hen");
  EXPECT_EQ(worker->pid, 8);
  EXPECT_EQ(worker->report.since, kReceivedAt - seconds(2));
  EXPECT_EQ(read_worker_report(reports->memory(), 2)->pid, 9);
}

TEST(WorkerReports, OtherRanksAndLongReportsAreIgnored) {
  const auto reports = *WorkerReports::create(1);
  reports->store(0, report_of(7), kReceivedAt);
  reports->store(-1, report_of(8), kReceivedAt);
  reports->store(1, report_of(8), kReceivedAt);
  reports->store(0, Bytes(kWorkerReportBytesMax + 1), kReceivedAt);
  EXPECT_EQ(read_worker_report(reports->memory(), 0)->pid, 7);
  for (const int rank : {-1, 2, 1'000'000})
    EXPECT_FALSE(read_worker_report(reports->memory(), rank).has_value());
}

TEST(WorkerReports, RandomMemoryIsReadSafely) {
  const auto reports = *WorkerReports::create(1);
  reports->store(0, report_of(7), kReceivedAt);
  std::vector<std::uint64_t> copy(reports->memory().size() / sizeof(std::uint64_t));
  const std::span bytes = std::as_writable_bytes(std::span(copy));
  std::ranges::copy(reports->memory(), bytes.begin());
  EXPECT_TRUE(read_worker_report(bytes, 0).has_value());
  bytes[0] = std::byte{3};  // an odd version: the slot is being written
  EXPECT_FALSE(read_worker_report(bytes, 0).has_value());
  for (std::size_t at = 0; at < 64; ++at)
    for (const int value : {0, 0x7F, 0xFF}) {
      std::ranges::copy(reports->memory(), bytes.begin());
      bytes[at] = static_cast<std::byte>(value);
      (void)read_worker_report(bytes, 0);
    }
  EXPECT_FALSE(read_worker_report(bytes.first(100), 0).has_value());
}

}  // namespace
}  // namespace farandole
