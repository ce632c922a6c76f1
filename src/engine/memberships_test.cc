// These tests need no other rank. death_test.cc and ending_test.cc test groups with real members.
#include "engine/memberships.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "submission/submission_table.h"

namespace farandole {
namespace {

class MembershipsTest : public testing::Test {
 protected:
  std::vector<std::byte> bell_memory_{Doorbells::bytes_needed(2) + kFlagLineBytes};
  std::vector<std::byte> flight_memory_{FlightRecorder::bytes_needed() + kFlagLineBytes};
  SystemClock clock_;
  Doorbells doorbells_{aligned_address(bell_memory_), 0, 2};
  Doorbells peer_doorbells_{aligned_address(bell_memory_), 1, 2};
  FlightRecorder recorder_{aligned_address(flight_memory_)};
  std::vector<std::byte> mailbox_memory_{Mailbox::bytes_needed(2) + kFlagLineBytes};
  Memberships memberships_{
      {.doorbells = doorbells_,
       .recorder = recorder_,
       .clock = clock_,
       .transports = {.memory = aligned_address(mailbox_memory_), .local_ranks = {0, 1}},
       .pids = {100, 101}}};
  std::vector<Record*> finished_;

 private:
  static std::byte* aligned_address(std::vector<std::byte>& memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (kFlagLineBytes - address % kFlagLineBytes) % kFlagLineBytes;
  }
};

TEST_F(MembershipsTest, ACallOfARemovedGroupFinishesImmediately) {
  Record record;
  record.submission.group = 3;
  record.submission.operation = Operation::kAllreduce;
  record.submission.name = "x";
  memberships_.submit(record, finished_);
  EXPECT_EQ(finished_, std::vector<Record*>{&record});
  EXPECT_EQ(record.outcome.status,
            Status::fix_call("group 3 was removed before allreduce `x` could begin"));
}

TEST_F(MembershipsTest, ALeaveIsReadOnce) {
  EXPECT_FALSE(memberships_.advance(finished_));
  peer_doorbells_.leave("enough");
  EXPECT_TRUE(memberships_.advance(finished_));
  EXPECT_FALSE(memberships_.advance(finished_));
  EXPECT_FALSE(memberships_.any_group_has_ended());
}

TEST_F(MembershipsTest, OnlyTheFirstReasonToGiveUpIsPublished) {
  memberships_.give_up({Status::stop("broken"), "first"}, finished_);
  memberships_.give_up({Status::stop("broken again"), "second"}, finished_);
  memberships_.end_by_shutdown("third", finished_);
  ASSERT_TRUE(peer_doorbells_.leaver(0));
  EXPECT_EQ(peer_doorbells_.leaver(0)->reason, "first");
}

TEST_F(MembershipsTest, WithoutAReasonTheEndIsNotPublished) {
  memberships_.end_by_shutdown({}, finished_);
  EXPECT_FALSE(peer_doorbells_.has_left(0));
}

TEST_F(MembershipsTest, WithoutGroupsTheDeadlineIsThatOfTheCaller) {
  const TimePoint limit = clock_.now();
  EXPECT_EQ(memberships_.deadline(limit), limit);
}

}  // namespace
}  // namespace farandole
