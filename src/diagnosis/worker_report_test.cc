#include "diagnosis/worker_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <random>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kTimeThere{seconds(1000)};
constexpr TimePoint kTimeHere{seconds(77)};

RecordedCall call_of(Handle handle, CallState state) {
  RecordedCall call;
  call.handle = handle;
  call.group = 3;
  call.operation = Operation::kAllreduce;
  call.dtype = DType::kFloat32;
  call.peer = -1;
  call.elements = 1'000'000'000'000;
  call.name = "grad";
  call.name_hash = 0xFFFF'FFFF'FFFF'FFF0;
  call.state = state;
  call.submitted = kTimeThere - seconds(30);
  call.changed = kTimeThere - seconds(20) + milliseconds(handle);
  return call;
}

WatchedWorker sample_worker() {
  WatchedWorker worker{.host = "hen", .pid = 4711, .report = {}, .end = "exited with code 3"};
  worker.stop_signal = SIGSTOP;
  worker.cores = "0-3,8";
  FlightReport& report = worker.report;
  report.member_state = MemberState::kMember;
  report.since = kTimeThere - seconds(100);
  report.blamed_rank = 5;
  report.cause = LeaveCause::kException;
  report.reason = "because";
  report.groups = {kWorld, 3};
  report.calls = {call_of(1, CallState::kDone), call_of(2, CallState::kWaiting)};
  report.counts = {.calls = 7, .bytes = 1U << 20U, .blocked = milliseconds(1234)};
  report.wait = {.handle = 2, .since = kTimeThere - seconds(30), .until = kTimeThere - seconds(1)};
  return worker;
}

WatchedWorker round_trip(const WatchedWorker& worker) {
  const auto decoded = decode_worker(encode_worker(worker, kTimeThere), kTimeHere);
  EXPECT_TRUE(decoded.has_value());
  return decoded.value_or(WatchedWorker());
}

TEST(WorkerReport, TimesAreConvertedToTheClockOfTheReader) {
  const WatchedWorker worker = round_trip(sample_worker());
  EXPECT_EQ(worker.host, "hen");
  EXPECT_EQ(worker.pid, 4711);
  EXPECT_EQ(worker.end, "exited with code 3");
  EXPECT_EQ(worker.stop_signal, SIGSTOP);
  EXPECT_EQ(worker.cores, "0-3,8");
  const FlightReport& report = worker.report;
  EXPECT_EQ(report.member_state, MemberState::kMember);
  EXPECT_EQ(report.since, kTimeHere - seconds(100));
  EXPECT_EQ(report.blamed_rank, 5);
  EXPECT_EQ(report.cause, LeaveCause::kException);
  EXPECT_EQ(report.reason, "because");
  EXPECT_THAT(report.groups, ::testing::ElementsAre(kWorld, 3));
  EXPECT_EQ(report.counts.calls, 7);
  EXPECT_EQ(report.counts.bytes, 1U << 20U);
  EXPECT_EQ(report.counts.blocked, milliseconds(1234));
  EXPECT_EQ(report.wait.handle, 2);
  EXPECT_EQ(report.wait.since, kTimeHere - seconds(30));
  EXPECT_EQ(report.wait.until, kTimeHere - seconds(1));
  ASSERT_EQ(report.calls.size(), 2);
  const RecordedCall& call = report.calls[1];
  EXPECT_EQ(call.handle, 2);
  EXPECT_EQ(call.group, 3);
  EXPECT_EQ(call.operation, Operation::kAllreduce);
  EXPECT_EQ(call.dtype, DType::kFloat32);
  EXPECT_EQ(call.peer, -1);
  EXPECT_EQ(call.elements, 1'000'000'000'000);
  EXPECT_EQ(call.name, "grad");
  EXPECT_EQ(call.name_hash, 0xFFFF'FFFF'FFFF'FFF0);
  EXPECT_EQ(call.state, CallState::kWaiting);
  EXPECT_EQ(call.submitted, kTimeHere - seconds(30));
  EXPECT_EQ(call.changed, kTimeHere - seconds(20) + milliseconds(2));
}

TEST(WorkerReport, UnknownValuesStayUnknown) {
  const WatchedWorker worker = round_trip(WatchedWorker());
  EXPECT_EQ(worker.report.since, TimePoint());
  EXPECT_EQ(worker.report.blamed_rank, std::nullopt);
  EXPECT_EQ(worker.report.wait.until, std::nullopt);
}

TEST(WorkerReport, HasAllCallsInFlightAndTheLastFinishedOnes) {
  WatchedWorker worker = sample_worker();
  worker.report.calls.clear();
  for (Handle handle = 1; handle <= 100; ++handle)
    worker.report.calls.push_back(
        call_of(handle, handle % 2 == 0 ? CallState::kDone : CallState::kRunning));
  const WatchedWorker received = round_trip(worker);
  std::vector<Handle> finished_handles;
  std::size_t in_flight = 0;
  for (const RecordedCall& call : received.report.calls)
    if (call.in_flight())
      ++in_flight;
    else
      finished_handles.push_back(call.handle);
  EXPECT_EQ(in_flight, 50);
  EXPECT_THAT(finished_handles, ::testing::ElementsAre(86, 88, 90, 92, 94, 96, 98, 100));
}

TEST(WorkerReport, TheLongestReportIsWithinTheLimit) {
  WatchedWorker worker = sample_worker();
  worker.host.assign(10'000, 'h');
  worker.end.assign(10'000, 'e');
  worker.report.reason.assign(10'000, 'r');
  worker.report.traceback.assign(10'000, 't');
  worker.report.groups.assign(1000, 1);
  worker.report.calls.assign(1000, call_of(1, CallState::kWaiting));
  for (RecordedCall& call : worker.report.calls) call.name.assign(1000, 'n');
  const Bytes bytes = encode_worker(worker, kTimeThere);
  EXPECT_GT(bytes.size(), kWorkerReportBytesMax * 9 / 10);
  EXPECT_LE(bytes.size(), kWorkerReportBytesMax);
  const auto decoded = decode_worker(bytes, kTimeHere);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->report.calls.size(), kFlightCalls);
  EXPECT_EQ(decoded->report.traceback, "");
}

TEST(WorkerReport, InvalidBytesAreDecodedSafely) {
  const Bytes bytes = encode_worker(sample_worker(), kTimeThere);
  for (std::size_t count = 0; count < bytes.size(); ++count)
    EXPECT_FALSE(decode_worker(std::span(bytes).first(count), kTimeHere).has_value());
  Bytes longer_bytes = bytes;
  longer_bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_worker(longer_bytes, kTimeHere).has_value());
  std::mt19937 random(1);
  int accepted_count = 0;
  for (int i = 0; i < 20'000; ++i) {
    Bytes changed_bytes = bytes;
    changed_bytes[random() % changed_bytes.size()] = static_cast<std::byte>(random());
    if (const auto worker = decode_worker(changed_bytes, kTimeHere)) {
      ++accepted_count;
      for (const RecordedCall& call : worker->report.calls)
        EXPECT_LT(static_cast<std::size_t>(call.operation), kOperationRows.size());
    }
  }
  EXPECT_GT(accepted_count, 0);
}

}  // namespace
}  // namespace farandole
