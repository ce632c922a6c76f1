// The promises that all steps keep, whatever the operation: the same tests for every row of the
// table of operations.
#include "collective/chooser.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

constexpr std::byte kUntouched{0xee};

// All but the join, which is no step of its own.
std::vector<OperationRow> steps_of_table() {
  std::vector<OperationRow> rows(kOperations.begin(), kOperations.end());
  std::erase_if(rows, [](const OperationRow& row) { return row.operation == Operation::kJoin; });
  return rows;
}

// One member's call of any operation on int32: member m brings m + 1 everywhere.
struct Side {
  Side(Operation chosen, int of_member, int of_members, std::int64_t elements)
      : operation(chosen), member(of_member), members(of_members), count(elements) {
    input.assign(static_cast<std::size_t>(count), member + 1);
    output.resize(input.size() * 4, kUntouched);
  }

  CollectiveCall call() {
    return {.operation = operation,
            .dtype = DType::kInt32,
            .reduce_op = ReduceOp::kSum,
            .root = members - 1,
            .count = count,
            .rows = count,
            .row_bytes = 4,
            .splits = std::vector<std::int64_t>(static_cast<std::size_t>(members), count / members),
            .input = reinterpret_cast<const std::byte*>(input.data()),
            .output = output.data(),
            .allocate = [this](std::span<const std::int64_t> rows) {
              allocated = true;
              output.assign(static_cast<std::size_t>(count) * 4 * rows.size(), kUntouched);
              return output.data();
            }};
  }
  bool untouched() const {
    return !allocated &&
           std::ranges::all_of(output, [](std::byte byte) { return byte == kUntouched; });
  }
  std::int32_t element(std::int64_t index) const {
    std::int32_t value = 0;
    std::memcpy(&value, output.data() + index * 4, 4);
    return value;
  }
  // How many elements come from one member, where the output keeps them apart; else how many there
  // are.
  std::int64_t elements_of_part() const {
    if (operation == Operation::kBarrier) return 0;
    if (operation == Operation::kReducescatter) return scattered_rows(count, members, member);
    return operation == Operation::kAlltoall ? count / members : count;
  }
  std::int32_t expected_from(int from) const {
    if (row_of(operation).reduces) return members * (members + 1) / 2;
    return row_of(operation).rooted ? members : from + 1;
  }
  void expect_right() const {
    const std::int64_t part = elements_of_part();
    const int parts = row_of(operation).output_rule == OutputRule::kReceived ? members : 1;
    for (int from = 0; from < parts; ++from)
      for (std::int64_t index = 0; index < part; index += 1 + part / 7)
        EXPECT_EQ(element(from * part + index), expected_from(from)) << row_of(operation).name;
  }

  Operation operation;
  int member;
  int members;
  std::int64_t count;
  std::vector<std::int32_t> input;
  std::vector<std::byte> output;
  bool allocated = false;
};

struct Sides {
  Sides(Operation operation, int members, std::int64_t count) {
    for (int member = 0; member < members; ++member)
      list.push_back(std::make_unique<Side>(operation, member, members, count));
  }
  Side& operator[](int member) { return *list[static_cast<std::size_t>(member)]; }
  std::vector<std::unique_ptr<Side>> list;
};

class EveryOperation : public ::testing::TestWithParam<OperationRow> {};

TEST_P(EveryOperation, writes_nothing_and_is_not_done_before_all_have_entered) {
  constexpr int kMembers = 3;
  for (int last = 0; last < kMembers; ++last) {
    GroupInTest group(kMembers);
    Sides sides(GetParam().operation, kMembers, 200'000);
    std::vector<CollectiveStep> steps;
    for (int member = 0; member < kMembers; ++member)
      steps.push_back(choose(group.group(member), step_number(1), sides[member].call()));
    for (int turn = 0; turn < 10 * kMembers; ++turn) {
      const int member = turn % kMembers;
      if (member == last) continue;
      EXPECT_NE(advance(steps[static_cast<std::size_t>(member)]), Progress::kDone);
      EXPECT_TRUE(sides[member].untouched());
    }
    group.finish_in_random_order(steps, static_cast<unsigned>(last));
    for (int member = 0; member < kMembers; ++member) sides[member].expect_right();
  }
}

TEST_P(EveryOperation, a_step_that_not_all_entered_can_be_dropped_and_comes_again) {
  GroupInTest group(2);
  Sides sides(GetParam().operation, 2, 200'000);
  std::vector<CollectiveStep> again;
  {
    CollectiveStep dropped = choose(group.group(0), step_number(1), sides[0].call());
    while (advance(dropped) == Progress::kMoved) {
    }
  }
  group.group(0).board->withdraw(0);
  EXPECT_TRUE(sides[0].untouched());
  for (int member = 0; member < 2; ++member)
    again.push_back(choose(group.group(member), {.generation = 2, .sequence = 1, .id = 5},
                           sides[member].call()));
  group.finish_in_random_order(again, 1);
  for (int member = 0; member < 2; ++member) sides[member].expect_right();
}

TEST_P(EveryOperation, another_identity_is_a_mismatch_for_all_and_nothing_is_written) {
  constexpr int kMembers = 3;
  GroupInTest group(kMembers);
  Sides sides(GetParam().operation, kMembers, 1000);
  std::vector<CollectiveStep> steps;
  for (int member = 0; member < kMembers; ++member)
    steps.push_back(choose(group.group(member),
                           {.generation = 1, .sequence = 1, .id = member == 1 ? 8U : 9U},
                           sides[member].call()));
  for (int member = 0; member + 1 < kMembers; ++member)
    EXPECT_NE(advance(steps[static_cast<std::size_t>(member)]), Progress::kMismatch);
  EXPECT_EQ(group.finish(kMembers - 1, steps.back()), Progress::kMismatch);
  for (int member = 0; member + 1 < kMembers; ++member)
    EXPECT_EQ(advance(steps[static_cast<std::size_t>(member)]), Progress::kMismatch);
  for (int member = 0; member < kMembers; ++member) EXPECT_TRUE(sides[member].untouched());
}

TEST_P(EveryOperation, runs_on_large_and_empty_tensors_in_turn) {
  constexpr int kMembers = 4;
  GroupInTest group(kMembers);
  group.in_threads([&](int member) {
    for (std::uint32_t sequence = 1; sequence <= 30; ++sequence) {
      Side side(GetParam().operation, member, kMembers, sequence % 3 * 70'001);
      CollectiveStep step = choose(group.group(member), step_number(sequence), side.call());
      ASSERT_EQ(group.finish(member, step), Progress::kDone);
      side.expect_right();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Table, EveryOperation, ::testing::ValuesIn(steps_of_table()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Choose, operations_take_turns_on_one_board) {
  constexpr int kMembers = 8;
  GroupInTest group(kMembers);
  const std::vector<OperationRow> rows = steps_of_table();
  group.in_threads([&](int member) {
    for (std::uint32_t sequence = 1; sequence <= 200; ++sequence) {
      const Operation operation = rows[sequence * 7 / 3 % rows.size()].operation;
      Side side(operation, member, kMembers, sequence * sequence % 100 * 31);
      CollectiveStep step = choose(group.group(member), step_number(sequence), side.call());
      ASSERT_EQ(group.finish(member, step), Progress::kDone);
      side.expect_right();
    }
  });
}

TEST(ChooseDeathTest, a_join_is_no_step_of_its_own) {
  GroupInTest group(1);
  EXPECT_DEATH(choose(group.group(0), step_number(1), {.operation = Operation::kJoin}),
               "a join is no step of its own");
}

}  // namespace
}  // namespace farandole
