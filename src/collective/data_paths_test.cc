// Tests the three ways in which a member publishes its data (in the flag line, staged, exposed),
// and the sizes at which it begins to use another way. In some tests, all members use the same way;
// in others, each member uses a way of its own.
#include <gtest/gtest.h>

#include <tuple>

#include "collective/call_in_test.h"

namespace farandole {
namespace {

constexpr std::int64_t kInlinePayloadBytes = static_cast<std::int64_t>(kInlineBytes);

std::vector<OperationRow> operations() {
  std::vector<OperationRow> rows = operations_with_steps();
  std::erase_if(rows, [](const OperationRow& row) { return row.output_rule == OutputRule::kNone; });
  return rows;
}

class DataPaths : public ::testing::TestWithParam<std::tuple<OperationRow, int>> {
 protected:
  Operation operation() const { return std::get<0>(GetParam()).operation; }
  int members() const { return std::get<1>(GetParam()); }

  // `bytes(member)` is how many bytes a member contributes. If all members of an operation must
  // contribute the same number of bytes, that number is bytes(0).
  PreparedCall call_of(const std::function<std::int64_t(int member)>& bytes,
                       std::vector<bool> in_heap) {
    CallInTest call = {.operation = operation(),
                       .reduction = {.dtype = DType::kUInt8},
                       .root = static_cast<int>(seed_) % members(),
                       .in_heap = std::move(in_heap),
                       .seed = ++seed_};
    const bool is_uneven = std::get<0>(GetParam()).output_rule == OutputRule::kEngineMemory;
    for (int member = 0; member < members(); ++member)
      call.rows.push_back(bytes(is_uneven ? member : 0));
    if (operation() == Operation::kAlltoall)
      for (const std::int64_t rows : call.rows) call.splits.push_back(even_splits(rows));
    return PreparedCall(call);
  }

  // Nearly equal shares; some may be empty.
  std::vector<std::int64_t> even_splits(std::int64_t rows) const {
    std::vector<std::int64_t> splits;
    for (int member = 0; member < members(); ++member)
      splits.push_back((member + 1) * rows / members() - member * rows / members());
    return splits;
  }

  std::vector<bool> every_second_in_heap(int first) const {
    std::vector<bool> in_heap;
    for (int member = 0; member < members(); ++member) in_heap.push_back((member + first) % 2 == 0);
    return in_heap;
  }

  void run(const std::vector<PreparedCall>& calls) {
    run_in_threads(members(), calls);
    run_in_random_order(members(), calls, seed_);
    for (int slow = 0; slow < members(); ++slow) run_with_a_slow_member(members(), calls, slow);
  }

  unsigned seed_ = 0;
};

// In an all-to-all, the splits use a part of the flag line.
TEST_P(DataPaths, are_correct_for_sizes_around_the_inline_limit) {
  const std::int64_t splits = 8 * members();
  std::vector<PreparedCall> calls;
  for (const std::int64_t limit : {kInlinePayloadBytes, kInlinePayloadBytes - splits})
    for (const std::int64_t bytes : {limit - 1, limit, limit + 1})
      for (const int first : {0, 1})
        calls.push_back(call_of([&](int) { return bytes; }, every_second_in_heap(first)));
  run(calls);
}

TEST_P(DataPaths, are_correct_for_sizes_around_a_round_and_the_staging_memory) {
  const auto staging = static_cast<std::int64_t>(kStagingBytesPerSlot);
  std::vector<PreparedCall> calls;
  for (const std::int64_t boundary : {kRoundBytes, staging})
    for (const std::int64_t bytes : {boundary - 1, boundary, boundary + 1})
      calls.push_back(call_of([&](int) { return bytes; }, {}));
  run_in_threads(members(), calls);
  run_in_random_order(members(), calls, seed_);
}

// Members contribute different sizes: some expose, some stage, some use the flag line, and some
// contribute nothing.
TEST_P(DataPaths, can_differ_between_members) {
  const std::int64_t sizes[] = {3 * kRoundBytes + 100, 10, 0, kRoundBytes, 50'000};
  std::vector<PreparedCall> calls;
  for (int turn = 0; turn < 5; ++turn)
    for (const int first : {0, 1})
      calls.push_back(call_of([&](int member) { return sizes[(member + turn) % 5]; },
                              every_second_in_heap(first)));
  run(calls);
}

TEST_P(DataPaths, are_correct_for_tensors_in_heaps) {
  std::vector<PreparedCall> calls;
  const std::vector<bool> all(static_cast<std::size_t>(members()), true);
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{7000}, kRoundBytes + 1, 5 * kRoundBytes + 3})
    calls.push_back(call_of([&](int member) { return bytes + member; }, all));
  run(calls);
}

INSTANTIATE_TEST_SUITE_P(Table, DataPaths,
                         ::testing::Combine(::testing::ValuesIn(operations()),
                                            ::testing::Values(1, 2, 3, 5)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

// The splits of this many members do not fit into a flag line.
TEST(DataPathsOfManyMembers, are_correct_for_splits_in_the_staging_memory) {
  constexpr int kMembers = 140;
  CallInTest call = {.operation = Operation::kAlltoall, .reduction = {.dtype = DType::kUInt8}};
  for (int from = 0; from < kMembers; ++from) {
    std::vector<std::int64_t>& splits = call.splits.emplace_back();
    for (int to = 0; to < kMembers; ++to)
      splits.push_back(from == 3 && to % 50 == 0 ? 9000 : (from + to) % 2);
    call.rows.push_back(10'000 * kMembers);
  }
  run_in_random_order(kMembers, {PreparedCall(call), PreparedCall(call)}, 1);
}

// Member 0 dies during a step. The calls of the other members then end with an error, and their
// programs may overwrite the memory that they have exposed.
class ExposerGone : public ::testing::TestWithParam<OperationRow> {};

TEST_P(ExposerGone, a_death_keeps_steps_with_exposed_memory_pending) {
  constexpr std::int64_t kBytes = 600'000;
  GroupInTest group(3);
  CallInTest call = {.operation = GetParam().operation,
                     .reduction = {.dtype = DType::kUInt8},
                     .root = 1,
                     .rows = {kBytes, kBytes, kBytes},
                     .in_heap = {true, true, true}};
  if (call.operation == Operation::kAlltoall)
    call.splits.assign(3, {kBytes / 3, kBytes / 3, kBytes / 3});
  const PreparedCall prepared(call);
  std::vector<std::unique_ptr<MemberCallInTest>> member_calls;
  std::vector<CollectiveStep> steps;
  for (int member = 0; member < 3; ++member) {
    member_calls.push_back(
        std::make_unique<MemberCallInTest>(prepared, member, &group.heap(member)));
    steps.push_back(member_calls.back()->step(group.group(member), step_identity(1)));
    EXPECT_EQ(advance(steps.back()), member < 2 ? Progress::kPending : Progress::kAdvanced);
  }
  group.doorbells(1).close(0);
  for (int turn = 0; turn < 3; ++turn) {
    for (CollectiveStep& step : steps) {
      Progress progress = Progress::kAdvanced;
      while (progress == Progress::kAdvanced) progress = advance(step);
      EXPECT_EQ(progress, Progress::kPending);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ExposerGone, ::testing::ValuesIn(operations()),
                         [](const auto& test) { return std::string(test.param.name); });

// Member 1's entry is written by hand: it exposes memory outside its heap.
class Exposers : public ::testing::TestWithParam<OperationRow> {};

TEST_P(Exposers, exposed_memory_outside_of_the_heap_is_a_mismatch) {
  constexpr std::int64_t kBytes = 100'000;
  GroupInTest group(3);
  CallInTest call = {.operation = GetParam().operation,
                     .reduction = {.dtype = DType::kUInt8},
                     .root = 1,
                     .rows = {kBytes, kBytes, kBytes}};
  if (call.operation == Operation::kAlltoall) call.splits.assign(3, {0, kBytes, 0});
  const PreparedCall prepared(call);
  std::vector<std::unique_ptr<MemberCallInTest>> member_calls;
  std::vector<CollectiveStep> steps;
  for (const int member : {0, 2}) {
    member_calls.push_back(std::make_unique<MemberCallInTest>(prepared, member));
    steps.push_back(member_calls.back()->step(group.group(member), step_identity(1)));
    EXPECT_EQ(advance(steps.back()), Progress::kPending);
  }
  FlagBoard& board = *group.group(1).board;
  const std::array<std::int64_t, 3> splits = {0, kBytes, 0};
  std::memcpy(board.own_inline_payload(1), splits.data(), sizeof(splits));
  board.enter(1, 1,
              {.identity = step_identity(1).id,
               .declared_count = kBytes,
               .input = GroupInTest::kHeapBytes - static_cast<std::size_t>(kBytes) + 1});
  for (CollectiveStep& step : steps) EXPECT_EQ(advance(step), Progress::kMismatch);
  for (const auto& member_call : member_calls) EXPECT_TRUE(member_call->is_untouched());
}

INSTANTIATE_TEST_SUITE_P(Table, Exposers, ::testing::ValuesIn(operations()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace farandole
