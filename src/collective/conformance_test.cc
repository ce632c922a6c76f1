// Compares every operation with a plain reference, for all dtypes, many sizes and numbers of
// members, in place and out of place. Consecutive calls reuse the same slots. The members run in
// threads, or in one thread in many orders.
#include <gtest/gtest.h>

#include <tuple>

#include "collective/call_in_test.h"

namespace farandole {
namespace {

constexpr int kMembersMax = 8;

template <class Choices>
auto random_choice(std::mt19937& random, const Choices& choices) {
  return choices[static_cast<std::size_t>(random_below(random, static_cast<long>(choices.size())))];
}

class Conformance : public ::testing::TestWithParam<std::tuple<OperationRow, int>> {
 protected:
  Operation operation() const { return std::get<0>(GetParam()).operation; }
  int members() const { return std::get<1>(GetParam()); }

  std::vector<ReduceOp> reduce_ops(DType dtype) const {
    std::vector<ReduceOp> ops = {ReduceOp::kSum};
    if (row_of(operation()).reduces)
      ops = {ReduceOp::kSum,     ReduceOp::kAverage,          ReduceOp::kMin,   ReduceOp::kMax,
             ReduceOp::kProduct, ReduceOp::kAverageOfPresent, ReduceOp::kAdasum};
    std::erase_if(ops, [&](ReduceOp op) { return !is_supported(operation(), dtype, op); });
    return ops;
  }

  // Calls with sizes at and just above a window, and a size of several windows.
  std::vector<PreparedCall> large_calls() const {
    std::mt19937 random(static_cast<unsigned>(members()));
    std::vector<PreparedCall> calls;
    for (const std::int64_t bytes : {kWindow, kWindow + 1, 5 * kWindow + 5}) {
      CallInTest call = {.operation = operation(), .row_elements = 1 + random_below(random, 3)};
      call.reduction.dtype = random_choice(random, kDTypes).dtype;
      call.reduction.op = random_choice(random, reduce_ops(call.reduction.dtype));
      calls.emplace_back(random_call(random, call, members(), bytes / call.row_bytes()));
    }
    return calls;
  }
};

TEST_P(Conformance, matches_the_reference_for_every_dtype_and_reduction) {
  std::mt19937 random(static_cast<unsigned>(members()));
  std::vector<PreparedCall> calls;
  const auto add = [&](DType dtype, ReduceOp op) {
    for (const std::int64_t rows : {0, 1, members() - 1, members(), members() + 1, 97})
      calls.emplace_back(random_call(random,
                                     {.operation = operation(),
                                      .reduction = {.dtype = dtype, .op = op},
                                      .row_elements = random_below(random, 5)},
                                     members(), rows));
  };
  for (const DTypeRow& row : kDTypes)
    for (const ReduceOp op : reduce_ops(row.dtype)) add(row.dtype, op);
  run_in_threads(members(), calls);
}

TEST_P(Conformance, matches_the_reference_for_large_tensors_in_threads) {
  run_in_threads(members(), large_calls());
}

TEST_P(Conformance, matches_the_reference_for_large_tensors_with_a_slow_member) {
  run_with_a_slow_member(members(), large_calls(), members() / 2);
}

INSTANTIATE_TEST_SUITE_P(Table, Conformance,
                         ::testing::Combine(::testing::ValuesIn(operations_with_steps()),
                                            ::testing::Range(1, kMembersMax + 1)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

// Random sequences of operations on the same slots. The parameter is the seed.
class RandomSequences : public ::testing::TestWithParam<unsigned> {
 protected:
  RandomSequences() : random_(GetParam()) {
    members_ = 1 + static_cast<int>(random_below(random_, kMembersMax));
    const std::int64_t calls = 10 + random_below(random_, 30);
    while (static_cast<std::int64_t>(calls_.size()) < calls) add();
  }

  void add() {
    const OperationRow row = random_choice(random_, operations_with_steps());
    const DType dtype = random_choice(random_, kDTypes).dtype;
    const auto op =
        static_cast<ReduceOp>(random_below(random_, static_cast<long>(kReduceOpNames.size())));
    if (!is_supported(row.operation, dtype, op)) return;
    // Most calls are small; some have several windows.
    const std::int64_t rows = random_below(random_, std::int64_t{1} << random_below(random_, 18));
    calls_.emplace_back(random_call(random_,
                                    {.operation = row.operation,
                                     .reduction = {.dtype = dtype, .op = op},
                                     .row_elements = random_below(random_, 4)},
                                    members_, rows));
  }

  std::mt19937 random_;
  int members_ = 0;
  std::vector<PreparedCall> calls_;
};

TEST_P(RandomSequences, match_the_reference_in_threads) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  run_in_threads(members_, calls_);
}

TEST_P(RandomSequences, match_the_reference_in_one_thread) {
  run_in_random_order(members_, calls_, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSequences, ::testing::Range(1U, 33U));

}  // namespace
}  // namespace farandole
