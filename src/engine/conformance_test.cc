// Compares every operation with the reference, in all dtypes, for several sizes and groups, in
// place and not in place. One to eight ranks run as threads, on one host or on several.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "engine/hosts_in_test.h"
#include "engine/reference_in_test.h"

namespace farandole {
namespace {

constexpr std::array<std::int64_t, 4> kCounts = {0, 1, 7, 1000};
// The number of elements of a tensor that fills several windows and a part of another one.
constexpr std::int64_t kLargeCount = 140'001;
constexpr std::array<DType, 4> kLargeDTypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                               DType::kFloat64};
constexpr std::int64_t kColumns = 3;

// A rank as a member of one group. Guard bytes behind the output buffer show writes beyond its end.
class Member {
 public:
  Member(Engine& engine, GroupId group)
      : engine_(engine), group_(group), ranks_(engine.ranks_of(group)) {}

  bool is_member() const { return std::ranges::count(ranks_, rank()) > 0; }
  int rank() const { return engine_.topology().rank; }
  int index() const { return static_cast<int>(std::ranges::find(ranks_, rank()) - ranks_.begin()); }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  Submission call(Operation operation, DType dtype, std::vector<std::int64_t> shape) const {
    Submission submission;
    submission.operation = operation;
    submission.group = group_;
    submission.dtype = dtype;
    submission.shape = std::move(shape);
    return submission;
  }

  std::vector<Values> inputs_of_all(DType dtype, std::int64_t count, int seed = 0) const {
    std::vector<Values> inputs_of_members;
    for (const int other_rank : ranks_)
      inputs_of_members.push_back(small_numbers(dtype, count, other_rank, seed));
    return inputs_of_members;
  }

  // Runs the call on a copy of `input` and returns the result. If the call is not in place, the
  // input must not change. Every second call is polled, and the others are waited for.
  Values run(Submission submission, const Values& input, std::size_t results, bool in_place) {
    const DType dtype = submission.dtype;
    auto source = encode_values(dtype, input);
    const auto source_before = source;
    constexpr std::size_t kGuardBytes = 64;
    std::vector<std::byte> target(results * row_of(dtype).bytes + kGuardBytes, std::byte{0xA5});
    submission.input = source.data();
    submission.output = in_place ? source.data() : target.data();
    const auto handle = engine_.submit(submission);
    if (++calls_ % 2 == 0 && handle.ok()) {
      while (!engine_.poll(*handle)) std::this_thread::yield();
    }
    outcome_ = finish(engine_, handle);
    EXPECT_EQ(outcome_.status, Status());
    EXPECT_TRUE(in_place || source == source_before);
    EXPECT_TRUE(std::all_of(target.end() - kGuardBytes, target.end(),
                            [](std::byte byte) { return byte == std::byte{0xA5}; }));
    if (row_of(submission.operation).output_rule != OutputRule::kEngineMemory)
      return decode_values(dtype, in_place ? source.data() : target.data(), results);
    return outcome_.received ? decode_values(dtype, outcome_.received.get(), results) : Values();
  }
  const Outcome& outcome() const { return outcome_; }

 private:
  Engine& engine_;
  GroupId group_;
  std::vector<int> ranks_;
  Outcome outcome_;
  int calls_ = 0;
};

void check_allreduce(Member& member, DType dtype, std::int64_t count) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    if (dtype == DType::kBool && op == ReduceOp::kAverage) continue;
    const auto inputs = member.inputs_of_all(dtype, count, static_cast<int>(op));
    const Values expected = round_to_dtype(dtype, reduce_values(dtype, op, inputs));
    for (const bool in_place : {false, true}) {
      Submission submission = member.call(Operation::kAllreduce, dtype, {count});
      submission.reduce_op = op;
      const auto& own_input = inputs[static_cast<std::size_t>(member.index())];
      const Values actual = member.run(submission, own_input, own_input.size(), in_place);
      ASSERT_EQ(actual, expected) << row_of(dtype).name << " " << name_of(op) << " × " << count;
    }
  }
}

// The scales are powers of two, which are exact in every dtype. Integers are truncated after each
// scaling.
void check_scales(Member& member, DType dtype) {
  if (dtype == DType::kBool) return;
  const auto inputs = member.inputs_of_all(dtype, 100);
  const auto truncate_integer = [dtype](double value) {
    return is_integer(dtype) ? std::trunc(value) : value;
  };
  auto scaled_inputs = inputs;
  for (Values& values : scaled_inputs)
    for (double& value : values) value = truncate_integer(value * 0.5);
  Values expected = reduce_values(dtype, ReduceOp::kSum, scaled_inputs);
  for (double& value : expected) value = truncate_integer(value * 4);
  for (const Operation operation : {Operation::kAllreduce, Operation::kReducescatter}) {
    Submission submission = member.call(operation, dtype, {100});
    submission.prescale = 0.5;
    submission.postscale = 4;
    const bool is_allreduce = operation == Operation::kAllreduce;
    const auto begin = is_allreduce ? 0 : first_scattered_row(100, member.size(), member.index());
    const auto rows = is_allreduce ? 100 : scattered_rows(100, member.size(), member.index());
    const Values expected_part(expected.begin() + begin, expected.begin() + begin + rows);
    const auto& own_input = inputs[static_cast<std::size_t>(member.index())];
    ASSERT_EQ(member.run(submission, own_input, expected_part.size(), false),
              round_to_dtype(dtype, expected_part))
        << row_of(dtype).name;
  }
}

void check_broadcast(Member& member, DType dtype, std::int64_t count) {
  const auto inputs = member.inputs_of_all(dtype, count);
  for (const std::size_t root : {std::size_t{0}, inputs.size() - 1}) {
    Submission submission = member.call(Operation::kBroadcast, dtype, {count});
    submission.root_rank = member.ranks()[root];
    const auto& own_input = inputs[static_cast<std::size_t>(member.index())];
    ASSERT_EQ(member.run(submission, own_input, own_input.size(), root % 2 == 0), inputs[root])
        << row_of(dtype).name << " × " << count;
  }
}

// Member m contributes m × `rows` rows.
void check_allgather(Member& member, DType dtype, std::int64_t rows) {
  Values expected;
  std::vector<std::int64_t> counts;
  for (int other_rank = 0; other_rank < member.size(); ++other_rank) {
    counts.push_back(rows * other_rank);
    const Values member_values = small_numbers(dtype, rows * other_rank * kColumns, other_rank, 0);
    expected.insert(expected.end(), member_values.begin(), member_values.end());
  }
  const std::int64_t own_rows = rows * member.index();
  const Values actual = member.run(member.call(Operation::kAllgather, dtype, {own_rows, kColumns}),
                                   small_numbers(dtype, own_rows * kColumns, member.index(), 0),
                                   expected.size(), false);
  ASSERT_EQ(actual, expected) << row_of(dtype).name << " × " << rows;
  ASSERT_EQ(member.outcome().received_rows, counts);
}

void check_reducescatter(Member& member, DType dtype, std::int64_t rows) {
  const auto inputs = member.inputs_of_all(dtype, rows * kColumns);
  const Values whole_result = round_to_dtype(dtype, reduce_values(dtype, ReduceOp::kSum, inputs));
  const auto begin = first_scattered_row(rows, member.size(), member.index()) * kColumns;
  const auto count = scattered_rows(rows, member.size(), member.index()) * kColumns;
  const Values expected(whole_result.begin() + begin, whole_result.begin() + begin + count);
  const Values actual =
      member.run(member.call(Operation::kReducescatter, dtype, {rows, kColumns}),
                 inputs[static_cast<std::size_t>(member.index())], expected.size(), false);
  ASSERT_EQ(actual, expected) << row_of(dtype).name << " × " << rows;
}

// Member s sends ((s + 2 r) mod 4) × `rows` rows to member r and has one more row that it does not
// send. If `equal_splits`, it sends `rows` rows to each member.
void check_alltoall(Member& member, DType dtype, std::int64_t rows, bool equal_splits) {
  const auto split = [&](int sender, int receiver) {
    return equal_splits ? rows : (sender + 2 * receiver) % 4 * rows;
  };
  const auto rows_sent_before = [&](int sender, int receiver) {
    std::int64_t sum = 0;
    for (int other_rank = 0; other_rank < receiver; ++other_rank) sum += split(sender, other_rank);
    return sum;
  };
  const auto total_rows = [&](int sender) {
    return rows_sent_before(sender, member.size()) + (equal_splits ? 0 : 1);
  };
  Values expected;
  std::vector<std::int64_t> counts;
  for (int sender = 0; sender < member.size(); ++sender) {
    const Values sender_values = small_numbers(dtype, total_rows(sender) * kColumns, sender, 1);
    const auto begin = sender_values.begin() + rows_sent_before(sender, member.index()) * kColumns;
    counts.push_back(split(sender, member.index()));
    expected.insert(expected.end(), begin, begin + counts.back() * kColumns);
  }
  const int own_index = member.index();
  Submission submission =
      member.call(Operation::kAlltoall, dtype, {total_rows(own_index), kColumns});
  for (int receiver = 0; !equal_splits && receiver < member.size(); ++receiver)
    submission.splits.push_back(split(own_index, receiver));
  const Values actual =
      member.run(submission, small_numbers(dtype, total_rows(own_index) * kColumns, own_index, 1),
                 expected.size(), false);
  ASSERT_EQ(actual, expected) << row_of(dtype).name << " × " << rows;
  ASSERT_EQ(member.outcome().received_rows, counts);
}

void check_operations(Member& member, DType dtype, std::int64_t count) {
  check_allreduce(member, dtype, count);
  check_broadcast(member, dtype, count);
  check_allgather(member, dtype, count / 20);
  check_reducescatter(member, dtype, count / 3);
  check_alltoall(member, dtype, count / 20, false);
  check_alltoall(member, dtype, count / 20, true);
}

void check_all_dtypes(Member& member) {
  for (const DTypeRow& row : kDTypes) {
    for (const std::int64_t count : kCounts) check_operations(member, row.dtype, count);
    check_scales(member, row.dtype);
  }
}

class Conformance : public ::testing::TestWithParam<HostOfRank> {
 protected:
  static int size() { return static_cast<int>(GetParam().size()); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, Conformance,
                         ::testing::Values(HostOfRank(1), HostOfRank(2), HostOfRank(3),
                                           HostOfRank(4), HostOfRank(5), HostOfRank(6),
                                           HostOfRank(7), HostOfRank(8)));
INSTANTIATE_TEST_SUITE_P(Hosts, Conformance,
                         ::testing::Values(HostOfRank{0, 0, 1, 1}, HostOfRank{0, 0, 0, 1},
                                           HostOfRank{0, 1, 2, 3}, HostOfRank{0, 1, 0, 1, 0}),
                         [](const auto& instance) { return hosts_name(instance.param); });

TEST_P(Conformance, EveryOperationIsCorrectInTheWorldAndInAGroup) {
  std::vector<std::vector<int>> groups;
  if (size() > 2) groups = {{0, size() - 1}};
  run_job(GetParam(), groups, [](Engine& engine) {
    for (GroupId group = 0; group < 2; ++group) {
      Member member(engine, group);
      if (member.is_member()) check_all_dtypes(member);
    }
  });
}

TEST_P(Conformance, EveryOperationIsCorrectWithManyWindows) {
  run_job(GetParam(), {}, [](Engine& engine) {
    Member member(engine, kWorld);
    check_operations(member, kLargeDTypes[static_cast<std::size_t>(size()) % 4], kLargeCount);
  });
}

// Some of these shapes have rows but no elements.
TEST_P(Conformance, TensorsWithoutElementsOrDimensionsWork) {
  run_job(GetParam(), {}, [](Engine& engine) {
    Member member(engine, kWorld);
    const int size = member.size();
    EXPECT_EQ(member.run(member.call(Operation::kAllreduce, DType::kInt32, {}), {1}, 1, true),
              Values{static_cast<double>(size)});
    EXPECT_EQ(member.run(member.call(Operation::kBroadcast, DType::kInt8, {}),
                         {static_cast<double>(member.rank())}, 1, false),
              Values{0});
    EXPECT_EQ(member.run(member.call(Operation::kAllgather, DType::kInt8, {member.rank(), 0}), {},
                         0, false),
              Values());
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < size; ++rank) rows.push_back(rank);
    EXPECT_EQ(member.outcome().received_rows, rows);
    EXPECT_EQ(
        member.run(member.call(Operation::kAlltoall, DType::kInt8, {2 * size, 0}), {}, 0, false),
        Values());
    EXPECT_EQ(member.outcome().received_rows,
              std::vector<std::int64_t>(static_cast<std::size_t>(size), 2));
    EXPECT_EQ(
        member.run(member.call(Operation::kReducescatter, DType::kInt8, {5, 0}), {}, 0, false),
        Values());
  });
}

}  // namespace
}  // namespace farandole
