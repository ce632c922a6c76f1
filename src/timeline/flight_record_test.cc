#include "timeline/flight_record.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/signature.h"

namespace farandole {
namespace {

TimePoint at_second(int seconds) { return TimePoint(std::chrono::seconds(seconds)); }

Submission allreduce_submission(std::string name, std::vector<std::int64_t> shape = {}) {
  Submission submission;
  submission.operation = Operation::kAllreduce;
  submission.dtype = DType::kFloat32;
  submission.name = std::move(name);
  submission.shape = std::move(shape);
  return submission;
}

class FlightRecordTest : public ::testing::Test {
 protected:
  std::vector<std::uint64_t> words_ =
      std::vector<std::uint64_t>(FlightRecorder::bytes_needed() / 8 + 8);
  std::byte* memory_ = [this] {
    const auto address = reinterpret_cast<std::uintptr_t>(words_.data());
    return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
  }();
  FlightRecorder recorder_{memory_};

  void submit(Handle handle, const Submission& submission, TimePoint now) {
    recorder_.record_submitted(handle, submission, digest_of(submission.name), now);
  }
};

TEST_F(FlightRecordTest, ZeroedMemoryIsAWorkerOutsideTheJob) {
  const FlightReport report = read_flight_record(memory_);
  EXPECT_EQ(report.member_state, MemberState::kOutside);
  EXPECT_FALSE(report.blamed_rank);
  EXPECT_EQ(report.cause, LeaveCause::kOrderly);
  EXPECT_TRUE(report.calls.empty());
}

TEST_F(FlightRecordTest, FollowsTheStatesOfACall) {
  recorder_.begin(at_second(1));
  EXPECT_EQ(read_flight_record(memory_).member_state, MemberState::kForming);
  recorder_.record_membership(at_second(2));
  submit(1, allreduce_submission("grad", {2, 3}), at_second(3));
  FlightReport report = read_flight_record(memory_);
  EXPECT_EQ(report.member_state, MemberState::kMember);
  EXPECT_EQ(report.since, at_second(2));
  ASSERT_EQ(report.calls.size(), 1U);
  EXPECT_EQ(report.calls[0].name, "grad");
  EXPECT_EQ(report.calls[0].operation, Operation::kAllreduce);
  EXPECT_EQ(report.calls[0].dtype, DType::kFloat32);
  EXPECT_EQ(report.calls[0].elements, 6);
  EXPECT_EQ(report.calls[0].state, CallState::kWaiting);
  EXPECT_TRUE(report.calls[0].in_flight());
  recorder_.record_running(1, at_second(4));
  recorder_.record_finished(1, true, at_second(5));
  report = read_flight_record(memory_);
  EXPECT_EQ(report.calls[0].state, CallState::kDone);
  EXPECT_EQ(report.calls[0].submitted, at_second(3));
  EXPECT_EQ(report.calls[0].changed, at_second(5));
  EXPECT_FALSE(report.calls[0].in_flight());
}

TEST_F(FlightRecordTest, CountsCallsAndBytes) {
  recorder_.begin(at_second(1));
  submit(1, allreduce_submission("grad", {2, 3}), at_second(2));
  submit(2, allreduce_submission("empty", {0}), at_second(2));
  Submission barrier;
  barrier.name = "barrier";
  barrier.operation = Operation::kBarrier;
  submit(3, barrier, at_second(2));
  recorder_.record_finished(1, true, at_second(3));
  recorder_.record_finished(2, false, at_second(3));
  FlightReport report = read_flight_record(memory_);
  EXPECT_EQ(report.counts.calls, 1U);
  EXPECT_EQ(report.counts.bytes, 24U);
  for (Handle handle = 4; handle < 4 + kFlightCalls; ++handle)
    submit(handle, allreduce_submission("x", {1}), at_second(4));
  // The call counts, although the record has no line for it any more.
  recorder_.record_finished(3, true, at_second(5));
  report = read_flight_record(memory_);
  EXPECT_EQ(report.counts.calls, 2U);
  EXPECT_EQ(report.counts.bytes, 24U + 4 * kFlightCalls);
  recorder_.begin(at_second(6));
  report = read_flight_record(memory_);
  EXPECT_EQ(report.counts.calls, 0U);
  EXPECT_EQ(report.counts.bytes, 0U);
}

TEST_F(FlightRecordTest, RecordsWhereAndHowLongTheProgramWaits) {
  recorder_.begin(at_second(1));
  EXPECT_EQ(read_flight_record(memory_).wait.handle, 0U);
  recorder_.record_blocked(7, at_second(2));
  FlightReport report = read_flight_record(memory_);
  EXPECT_EQ(report.wait.handle, 7U);
  EXPECT_EQ(report.wait.since, at_second(2));
  EXPECT_EQ(report.wait.until, std::nullopt);
  EXPECT_EQ(report.counts.blocked, Duration());
  recorder_.record_unblocked(at_second(5));
  recorder_.record_blocked(8, at_second(6));
  // According to its times, this wait ends before it began.
  recorder_.record_unblocked(at_second(6) - std::chrono::nanoseconds(1));
  report = read_flight_record(memory_);
  EXPECT_EQ(report.wait.handle, 8U);
  EXPECT_EQ(report.wait.until, at_second(6) - std::chrono::nanoseconds(1));
  EXPECT_EQ(report.counts.blocked, std::chrono::seconds(3));
}

TEST_F(FlightRecordTest, KeepsTheLastCallsOnly) {
  recorder_.begin(at_second(0));
  for (Handle handle = 1; handle <= kFlightCalls + 3; ++handle)
    submit(handle, allreduce_submission("x" + std::to_string(handle)), at_second(1));
  // The line of call 2 already belongs to call 2 + kFlightCalls.
  recorder_.record_finished(2, true, at_second(2));
  const FlightReport report = read_flight_record(memory_);
  ASSERT_EQ(report.calls.size(), kFlightCalls);
  EXPECT_EQ(report.calls.front().handle, 4U);
  EXPECT_EQ(report.calls.back().handle, kFlightCalls + 3);
  for (const RecordedCall& kept : report.calls) EXPECT_TRUE(kept.in_flight());
}

TEST_F(FlightRecordTest, LongNamesDifferInTheirHash) {
  recorder_.begin(at_second(0));
  const std::string common(kFlightNameBytes, 'n');
  submit(1, allreduce_submission(common + "1"), at_second(1));
  submit(2, allreduce_submission(common + "2"), at_second(1));
  const FlightReport report = read_flight_record(memory_);
  EXPECT_EQ(report.calls[0].name, report.calls[1].name);
  EXPECT_NE(report.calls[0].name_hash, report.calls[1].name_hash);
}

TEST_F(FlightRecordTest, KeepsTheFirstBlamedRankAndTheReason) {
  recorder_.begin(at_second(0));
  recorder_.enter_group(0);
  recorder_.enter_group(7);
  recorder_.record_blamed_rank(3);
  recorder_.record_blamed_rank(1);
  recorder_.record_left("raised ValueError", LeaveCause::kException,
                        std::string(100'000, 'x') + "the end", at_second(9));
  FlightReport report = read_flight_record(memory_);
  EXPECT_EQ(report.member_state, MemberState::kLeft);
  EXPECT_EQ(report.blamed_rank, 3);
  EXPECT_EQ(report.groups, (std::vector<GroupId>{0, 7}));
  EXPECT_EQ(report.cause, LeaveCause::kException);
  EXPECT_EQ(report.reason, "raised ValueError");
  EXPECT_TRUE(report.traceback.ends_with("xthe end"));
  recorder_.leave_group(0);
  EXPECT_EQ(read_flight_record(memory_).groups, (std::vector<GroupId>{7}));
  recorder_.begin(at_second(10));
  report = read_flight_record(memory_);
  EXPECT_FALSE(report.blamed_rank);
  EXPECT_EQ(report.cause, LeaveCause::kOrderly);
  EXPECT_TRUE(report.reason.empty() && report.traceback.empty() && report.groups.empty());
}

TEST_F(FlightRecordTest, AReaderNeverSeesAMixOfTwoCalls) {
  recorder_.begin(at_second(0));
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (Handle handle = 1; !stop; ++handle) {
      const auto digit = static_cast<char>('0' + handle % 10);
      submit(handle, allreduce_submission(std::string(kFlightNameBytes, digit)), at_second(1));
    }
  });
  for (int seen = 0; seen < 100'000;) {
    for (const RecordedCall& found : read_flight_record(memory_).calls) {
      ASSERT_EQ(found.name,
                std::string(kFlightNameBytes, static_cast<char>('0' + found.handle % 10)));
      ++seen;
    }
  }
  stop = true;
  writer.join();
}

// A faulty worker may write anything into its record, even while the launcher reads it.
TEST_F(FlightRecordTest, RandomBytesAreReadSafely) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    const auto bits = random() & random();  // sometimes few, sometimes many bits are set
    for (std::uint64_t& word : words_)
      word = random() & (round % 2 == 0 ? bits : ~std::uint64_t{0});
    const FlightReport report = read_flight_record(memory_);
    EXPECT_LE(report.member_state, MemberState::kLeft);
    EXPECT_LE(report.cause, LeaveCause::kGroupLost);
    EXPECT_LE(report.reason.size(), 1024U);
    EXPECT_LE(report.traceback.size(), 16U * 1024);
    EXPECT_LE(report.calls.size(), kFlightCalls);
    EXPECT_GE(report.counts.blocked, Duration());
    EXPECT_GE(at_second(1) - report.wait.since,
              Duration::min() / 2);  // the difference does not overflow
    for (const RecordedCall& call : report.calls) {
      EXPECT_LE(call.state, CallState::kFailed);
      EXPECT_LT(static_cast<std::size_t>(call.operation), kOperationRows.size());
      EXPECT_LT(static_cast<std::size_t>(call.dtype), kDTypes.size());
      EXPECT_LE(call.name.size(), kFlightNameBytes);
    }
  }
}

// If a few bytes of a valid record change, all other lines can still be read.
TEST_F(FlightRecordTest, ChangedBytesAffectOnlyTheirOwnLines) {
  recorder_.begin(at_second(1));
  for (Handle handle = 1; handle <= kFlightCalls; ++handle)
    submit(handle, allreduce_submission("gradient", {3}), at_second(2));
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::size_t kChanges = 20;
  for (std::size_t i = 0; i < kChanges; ++i)
    memory_[random() % FlightRecorder::bytes_needed()] = static_cast<std::byte>(random());
  std::size_t unchanged_calls = 0;
  for (const RecordedCall& call : read_flight_record(memory_).calls)
    unchanged_calls += call.name == "gradient" && call.elements == 3 ? 1 : 0;
  EXPECT_GE(unchanged_calls, kFlightCalls - kChanges);
}

}  // namespace
}  // namespace farandole
