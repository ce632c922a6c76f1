// Tests the promises that the steps of all operations keep. The same tests run for every row of the
// table of operations.
#include "collective/chooser.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "collective/call_in_test.h"

namespace farandole {
namespace {

constexpr int kFewMembers = 3;
constexpr std::int64_t kRowsOfSeveralWindows = 200'000;

class EveryOperation : public ::testing::TestWithParam<OperationRow> {
 protected:
  // Creates the steps of a call in which each member contributes about `rows` rows of 8 bytes.
  void start(std::int64_t rows, const StepIdentity& identity = step_identity(1)) {
    std::mt19937 random(static_cast<unsigned>(rows));
    const CallInTest call = {.operation = GetParam().operation, .row_elements = 2};
    prepared_ = std::make_unique<PreparedCall>(random_call(random, call, kFewMembers, rows));
    steps_.clear();
    member_calls_.clear();
    for (int member = 0; member < kFewMembers; ++member) {
      member_calls_.push_back(std::make_unique<MemberCallInTest>(*prepared_, member));
      steps_.push_back(member_calls_.back()->step(group_.group(member), identity));
    }
  }
  Progress advance_member(int member) { return advance(steps_[static_cast<std::size_t>(member)]); }
  void expect_untouched() const {
    for (const auto& member_call : member_calls_) EXPECT_TRUE(member_call->is_untouched());
  }
  void finish_and_expect_result(unsigned seed) {
    group_.finish_in_random_order(steps_, seed);
    for (const auto& member_call : member_calls_) member_call->expect_result();
  }

  GroupInTest group_{kFewMembers};
  std::unique_ptr<PreparedCall> prepared_;
  std::vector<std::unique_ptr<MemberCallInTest>> member_calls_;
  std::vector<CollectiveStep> steps_;
};

TEST_P(EveryOperation, writes_nothing_and_is_not_done_before_all_have_entered) {
  for (int last = 0; last < kFewMembers; ++last) {
    start(kRowsOfSeveralWindows, step_identity(static_cast<std::uint32_t>(last) + 1));
    for (int turn = 0; turn < 10 * kFewMembers; ++turn) {
      if (turn % kFewMembers == last) continue;
      EXPECT_NE(advance_member(turn % kFewMembers), Progress::kDone);
    }
    expect_untouched();
    finish_and_expect_result(static_cast<unsigned>(last));
  }
}

TEST_P(EveryOperation, a_step_that_not_all_entered_can_be_dropped_and_run_again) {
  start(kRowsOfSeveralWindows);
  for (int member = 0; member + 1 < kFewMembers; ++member) {
    while (advance_member(member) == Progress::kAdvanced) {
    }
    group_.group(member).board->roll_back();
  }
  expect_untouched();
  start(kRowsOfSeveralWindows, {.generation = 2, .sequence = 1, .id = 5});
  finish_and_expect_result(1);
}

TEST_P(EveryOperation, another_identity_is_a_misprediction_for_all_and_nothing_is_written) {
  start(1000);
  StepIdentity other = step_identity(1);
  other.id += std::uint64_t{1} << 32;
  steps_[1] = member_calls_[1]->step(group_.group(1), other);
  for (int member = 0; member + 1 < kFewMembers; ++member)
    EXPECT_NE(advance_member(member), Progress::kMisprediction);
  EXPECT_EQ(group_.finish(kFewMembers - 1, steps_.back()), Progress::kMisprediction);
  for (int member = 0; member + 1 < kFewMembers; ++member)
    EXPECT_EQ(advance_member(member), Progress::kMisprediction);
  expect_untouched();
  for (int member = 0; member < kFewMembers; ++member) group_.group(member).board->roll_back();
  start(1000, {.generation = 2, .sequence = 1, .id = other.id});
  finish_and_expect_result(1);
}

// Member 1's entry is written by hand. Barriers ignore the count, except that a negative count is a
// mismatch.
TEST_P(EveryOperation, an_absurd_declared_count_is_a_mismatch_and_nothing_is_written) {
  constexpr auto kElementsMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t declared_count :
       {std::int64_t{-1}, std::int64_t{1} - kElementsMax, kElementsMax, kElementsMax / 2}) {
    if (declared_count > 0 && GetParam().output_rule == OutputRule::kNone) continue;
    GroupInTest group(kFewMembers);
    start(1000);
    for (const int member : {0, 2})
      steps_[static_cast<std::size_t>(member)] =
          member_calls_[static_cast<std::size_t>(member)]->step(group.group(member),
                                                                step_identity(1));
    EXPECT_NE(advance_member(0), Progress::kMismatch);
    EXPECT_NE(advance_member(2), Progress::kMismatch);
    const Entry entry = {.identity = step_identity(1).id, .declared_count = declared_count};
    group.group(1).board->enter(1, 1, entry);
    EXPECT_EQ(advance_member(0), Progress::kMismatch) << declared_count;
    EXPECT_EQ(advance_member(2), Progress::kMismatch) << declared_count;
    expect_untouched();
  }
}

TEST_P(EveryOperation, alternates_between_large_and_empty_tensors) {
  for (std::uint32_t sequence = 1; sequence <= 12; ++sequence) {
    start(sequence % 3 * 70'001, step_identity(sequence));
    finish_and_expect_result(sequence);
  }
}

TEST_P(EveryOperation, exposes_only_what_exposable_memory_returns) {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{139}, kRowsOfSeveralWindows}) {
    GroupInTest group(kFewMembers);
    const auto input = group.heap(0).allocate(static_cast<std::size_t>(rows * 8)).value();
    const auto output = group.heap(0).allocate(static_cast<std::size_t>(rows * 8)).value();
    CollectiveCall call = {.operation = GetParam().operation,
                           .dtype = DType::kFloat32,
                           .count = 2 * rows,
                           .rows = rows,
                           .row_bytes = 8,
                           .splits = {rows, 0, 0},
                           .input = input.get(),
                           .output = output.get()};
    const auto may_expose = exposable_memory(group.group(0), call);
    EXPECT_TRUE(rows > 1 || may_expose[0].empty()) << "small tensors travel in the entry";
    CollectiveStep step = choose_step(group.group(0), step_identity(1), std::move(call));
    EXPECT_NE(advance(step), Progress::kDone);
    const Entry entry = group.group(0).board->entry(0);
    const std::array published_data = {entry.input, entry.output};
    for (std::size_t i = 0; i < published_data.size(); ++i) {
      if (published_data[i] == kNoLocation) continue;
      EXPECT_GE(may_expose[i].size(), static_cast<std::size_t>(rows * 8)) << GetParam().name;
      EXPECT_EQ(group.heap(0).location_of(may_expose[i].data(), may_expose[i].size()),
                published_data[i])
          << rows << " rows, " << (i == 0 ? "input" : "output");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryOperation, ::testing::ValuesIn(operations_with_steps()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ChooseDeathTest, joins_and_messages_are_not_steps) {
  GroupInTest group(1);
  for (const Operation operation : {Operation::kJoin, Operation::kSend, Operation::kReceive})
    EXPECT_DEATH(choose_step(group.group(0), step_identity(1), {.operation = operation}),
                 "joins and messages are not steps");
}

}  // namespace
}  // namespace farandole
