// Tests uneven splits and invalid entries of peers; the conformance suite tests the dtypes.
#include "collective/alltoall.h"

#include <gtest/gtest.h>

#include <limits>

#include "collective/call_in_test.h"

namespace farandole {
namespace {

constexpr auto kInt64Max = std::numeric_limits<std::int64_t>::max();

// `splits_of(from, to)` is how many rows go from one member to another. Each member also has two
// rows that it sends to no member.
PreparedCall call_of(int members, const std::function<std::int64_t(int, int)>& splits_of,
                     std::int64_t row_elements = 3) {
  CallInTest call = {.operation = Operation::kAlltoall,
                     .reduction = {.dtype = DType::kUInt8},
                     .row_elements = row_elements};
  for (int from = 0; from < members; ++from) {
    std::vector<std::int64_t>& splits = call.splits.emplace_back();
    call.rows.push_back(2);
    for (int to = 0; to < members; ++to) {
      splits.push_back(splits_of(from, to));
      call.rows.back() += splits.back();
    }
  }
  return PreparedCall(call);
}

class AlltoallMembers : public ::testing::TestWithParam<int> {};

TEST_P(AlltoallMembers, is_correct_for_uneven_splits) {
  const int members = GetParam();
  const std::int64_t large_split = 2 * kWindow / 3;  // several rounds for any number of members
  std::vector<PreparedCall> calls;
  calls.push_back(call_of(members, [](int, int) { return 0; }));
  calls.push_back(call_of(members, [&](int, int to) { return to == 0 ? large_split : 0; }));
  calls.push_back(call_of(members, [&](int from, int) { return from == 0 ? large_split : 0; }));
  calls.push_back(call_of(members, [&](int from, int to) { return from == to ? large_split : 0; }));
  calls.push_back(call_of(members, [&](int from, int to) { return from < to ? large_split : 1; }));
  calls.push_back(call_of(members, [](int from, int to) { return from * 10 + to; }, 0));
  calls.push_back(call_of(members, [](int from, int to) { return (from * 7 + to) % 3; }));
  run_in_threads(members, calls);
  run_in_random_order(members, calls, 2);
}

// The largest split decides the number of rounds for all members.
TEST_P(AlltoallMembers, is_correct_for_splits_around_the_size_of_a_piece) {
  const int members = GetParam();
  const std::int64_t piece = kRoundBytes / members / 64 * 64;
  std::vector<PreparedCall> calls;
  for (const std::int64_t bytes : {piece - 1, piece, piece + 1, 5 * piece, 5 * piece + 1}) {
    calls.push_back(call_of(members, [&](int, int) { return bytes; }, 1));
    calls.push_back(call_of(members, [&](int from, int to) { return bytes - (from + to) % 2; }, 1));
  }
  run_in_threads(members, calls);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AlltoallMembers, ::testing::Values(1, 2, 3, 5, 8));

TEST(Alltoall, a_member_without_memory_for_the_result_still_sends_its_rows) {
  GroupInTest group(2);
  const PreparedCall prepared = call_of(2, [](int, int) { return 200'000; });
  MemberCallInTest member_with_memory(prepared, 1);
  std::vector<CollectiveStep> steps;
  steps.push_back(Alltoall(group.group(0), step_identity(1),
                           {.input = prepared.inputs[0].data(),
                            .rows = prepared.call.rows[0],
                            .row_bytes = prepared.call.row_bytes(),
                            .splits = prepared.call.splits[0],
                            .allocate = [](std::span<const std::int64_t>) {
                              return static_cast<std::byte*>(nullptr);
                            }}));
  steps.push_back(member_with_memory.step(group.group(1), step_identity(1)));
  group.finish_in_random_order(steps, 1);
  member_with_memory.expect_result();
}

// An entry that the test writes for one member by hand, and the size of a row.
struct InvalidEntry {
  std::string name;
  std::int64_t rows;
  std::vector<std::int64_t> splits;
  std::int64_t row_bytes = 4;
};

class AlltoallInvalidEntries : public ::testing::TestWithParam<InvalidEntry> {};

TEST_P(AlltoallInvalidEntries, are_a_mismatch_for_all_and_nothing_is_written) {
  constexpr int kWrongMember = 1;
  const InvalidEntry& entry = GetParam();
  GroupInTest group(3);
  std::vector<Alltoall> steps;
  for (const int member : {0, 2})
    steps.emplace_back(group.group(member), step_identity(1),
                       Alltoall::Options{.row_bytes = entry.row_bytes,
                                         .splits = {0, 0, 0},
                                         .allocate = [](std::span<const std::int64_t>) {
                                           ADD_FAILURE() << "memory was requested";
                                           return static_cast<std::byte*>(nullptr);
                                         }});
  for (Alltoall& step : steps) EXPECT_EQ(step.advance(), Progress::kPending);
  std::memcpy(group.group(kWrongMember).board->own_inline_payload(1), entry.splits.data(), 3 * 8);
  group.group(kWrongMember)
      .board->enter(1, 1, {.identity = step_identity(1).id, .declared_count = entry.rows});
  for (Alltoall& step : steps) EXPECT_EQ(step.advance(), Progress::kMismatch);
}

INSTANTIATE_TEST_SUITE_P(
    All, AlltoallInvalidEntries,
    ::testing::Values(InvalidEntry{"negative", 10, {-1, 0, 0}},
                      InvalidEntry{"sum_exceeds_rows", 10, {5, 5, 1}},
                      InvalidEntry{"split_exceeds_rows", 10, {0, 11, 0}},
                      InvalidEntry{"balanced_by_a_negative", 10, {11, -1, 0}},
                      InvalidEntry{
                          "smallest", 10, {std::numeric_limits<std::int64_t>::min(), 0, 0}},
                      InvalidEntry{"sum_wraps_around", 10, {kInt64Max, kInt64Max, 12}},
                      InvalidEntry{"bytes_overflow", kInt64Max / 4 + 1, {0, kInt64Max / 4 + 1, 0}},
                      InvalidEntry{"unsent_bytes_overflow", kInt64Max, {0, 0, 0}},
                      InvalidEntry{"bytes_wrap_to_zero", std::int64_t{1} << 62, {0, 0, 0}, 4}),
    [](const auto& test) { return test.param.name; });

// Each entry by itself is valid, but the sum of the entries overflows.
TEST(Alltoall, a_received_size_that_overflows_is_a_mismatch) {
  GroupInTest group(3);
  Alltoall step(group.group(0), step_identity(1),
                {.row_bytes = 1, .splits = {0, 0, 0}, .allocate = [](auto) {
                   ADD_FAILURE() << "memory was requested for an impossible size";
                   return static_cast<std::byte*>(nullptr);
                 }});
  EXPECT_EQ(step.advance(), Progress::kPending);
  for (const int member : {1, 2}) {
    const std::array<std::int64_t, 3> splits = {kInt64Max, 0, 0};
    std::memcpy(group.group(member).board->own_inline_payload(1), splits.data(), sizeof(splits));
    group.group(member).board->enter(
        1, 1, {.identity = step_identity(1).id, .declared_count = kInt64Max});
  }
  EXPECT_EQ(step.advance(), Progress::kMismatch);
}

TEST(AlltoallDeathTest, invalid_own_splits_abort) {
  GroupInTest group(2);
  const auto make_step = [&](std::vector<std::int64_t> splits) {
    return Alltoall(group.group(0), step_identity(1),
                    {.rows = 4, .row_bytes = 1, .splits = std::move(splits)});
  };
  EXPECT_DEATH(make_step({4}), "one split for each member");
  EXPECT_DEATH(make_step({2, 3}), "do not exceed the rows");
  EXPECT_DEATH(make_step({5, -1}), "do not exceed the rows");
}

}  // namespace
}  // namespace farandole
