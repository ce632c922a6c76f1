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
// The number of elements of a tensor that fills several windows and a part of one more.
constexpr std::int64_t kLarge = 140'001;
constexpr std::array<DType, 4> kLargeDTypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                               DType::kFloat64};
constexpr std::int64_t kColumns = 3;

// One rank's part in one group. Its output buffer has guard bytes that show writes behind its end.
class Member {
 public:
  Member(Engine& engine, GroupId group)
      : engine_(engine), group_(group), ranks_(engine.ranks_of(group)) {}

  bool included() const { return std::ranges::count(ranks_, rank()) > 0; }
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
    std::vector<Values> all;
    for (const int other : ranks_) all.push_back(small_numbers(dtype, count, other, seed));
    return all;
  }

  // Runs the call on a copy of `input` and returns the result. If the call is not in place, the
  // input must not change. Every second call is polled instead of waited for.
  Values run(Submission submission, const Values& input, std::size_t results, bool in_place) {
    const DType dtype = submission.dtype;
    auto source = encoded(dtype, input);
    const auto before = source;
    constexpr std::size_t kGuard = 64;
    std::vector<std::byte> target(results * row_of(dtype).bytes + kGuard, std::byte{0xA5});
    submission.input = source.data();
    submission.output = in_place ? source.data() : target.data();
    const auto handle = engine_.submit(submission);
    if (++calls_ % 2 == 0 && handle.ok()) {
      while (!engine_.poll(*handle)) std::this_thread::yield();
    }
    outcome_ = finish(engine_, handle);
    EXPECT_EQ(outcome_.status, Status());
    EXPECT_TRUE(in_place || source == before);
    EXPECT_TRUE(std::all_of(target.end() - kGuard, target.end(),
                            [](std::byte byte) { return byte == std::byte{0xA5}; }));
    if (row_of(submission.operation).output_rule != OutputRule::kReceived)
      return decoded(dtype, in_place ? source.data() : target.data(), results);
    return outcome_.received ? decoded(dtype, outcome_.received.get(), results) : Values();
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
    const Values expected = rounded_to(dtype, reduced(dtype, op, inputs));
    for (const bool in_place : {false, true}) {
      Submission submission = member.call(Operation::kAllreduce, dtype, {count});
      submission.reduce_op = op;
      const auto& own = inputs[static_cast<std::size_t>(member.index())];
      const Values found = member.run(submission, own, own.size(), in_place);
      ASSERT_EQ(found, expected) << row_of(dtype).name << " " << name_of(op) << " × " << count;
    }
  }
}

// The scales are powers of two, which are exact in every dtype. Integers are truncated after each
// scaling.
void check_scales(Member& member, DType dtype) {
  if (dtype == DType::kBool) return;
  const auto inputs = member.inputs_of_all(dtype, 100);
  const auto truncated = [dtype](double value) {
    return is_integer(dtype) ? std::trunc(value) : value;
  };
  auto scaled = inputs;
  for (Values& values : scaled)
    for (double& value : values) value = truncated(value * 0.5);
  Values expected = reduced(dtype, ReduceOp::kSum, scaled);
  for (double& value : expected) value = truncated(value * 4);
  for (const Operation operation : {Operation::kAllreduce, Operation::kReducescatter}) {
    Submission submission = member.call(operation, dtype, {100});
    submission.prescale = 0.5;
    submission.postscale = 4;
    const bool whole = operation == Operation::kAllreduce;
    const auto begin = whole ? 0 : first_scattered_row(100, member.size(), member.index());
    const auto rows = whole ? 100 : scattered_rows(100, member.size(), member.index());
    const Values part(expected.begin() + begin, expected.begin() + begin + rows);
    const auto& own = inputs[static_cast<std::size_t>(member.index())];
    ASSERT_EQ(member.run(submission, own, part.size(), false), rounded_to(dtype, part))
        << row_of(dtype).name;
  }
}

void check_broadcast(Member& member, DType dtype, std::int64_t count) {
  const auto inputs = member.inputs_of_all(dtype, count);
  for (const std::size_t root : {std::size_t{0}, inputs.size() - 1}) {
    Submission submission = member.call(Operation::kBroadcast, dtype, {count});
    submission.root_rank = member.ranks()[root];
    const auto& own = inputs[static_cast<std::size_t>(member.index())];
    ASSERT_EQ(member.run(submission, own, own.size(), root % 2 == 0), inputs[root])
        << row_of(dtype).name << " × " << count;
  }
}

// Member m contributes m × `rows` rows.
void check_allgather(Member& member, DType dtype, std::int64_t rows) {
  Values expected;
  std::vector<std::int64_t> counts;
  for (int other = 0; other < member.size(); ++other) {
    counts.push_back(rows * other);
    const Values part = small_numbers(dtype, rows * other * kColumns, other, 0);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const std::int64_t own = rows * member.index();
  const Values found =
      member.run(member.call(Operation::kAllgather, dtype, {own, kColumns}),
                 small_numbers(dtype, own * kColumns, member.index(), 0), expected.size(), false);
  ASSERT_EQ(found, expected) << row_of(dtype).name << " × " << rows;
  ASSERT_EQ(member.outcome().received_rows, counts);
}

void check_reducescatter(Member& member, DType dtype, std::int64_t rows) {
  const auto inputs = member.inputs_of_all(dtype, rows * kColumns);
  const Values whole = rounded_to(dtype, reduced(dtype, ReduceOp::kSum, inputs));
  const auto begin = first_scattered_row(rows, member.size(), member.index()) * kColumns;
  const auto count = scattered_rows(rows, member.size(), member.index()) * kColumns;
  const Values expected(whole.begin() + begin, whole.begin() + begin + count);
  const Values found =
      member.run(member.call(Operation::kReducescatter, dtype, {rows, kColumns}),
                 inputs[static_cast<std::size_t>(member.index())], expected.size(), false);
  ASSERT_EQ(found, expected) << row_of(dtype).name << " × " << rows;
}

// Member s sends ((s + 2 r) mod 4) × `rows` rows to member r and has one more row that it does not
// send. If `equal`, it sends `rows` rows to each member.
void check_alltoall(Member& member, DType dtype, std::int64_t rows, bool equal) {
  const auto split = [&](int from, int to) { return equal ? rows : (from + 2 * to) % 4 * rows; };
  const auto sent_before = [&](int from, int to) {
    std::int64_t sum = 0;
    for (int other = 0; other < to; ++other) sum += split(from, other);
    return sum;
  };
  const auto total = [&](int from) { return sent_before(from, member.size()) + (equal ? 0 : 1); };
  Values expected;
  std::vector<std::int64_t> counts;
  for (int from = 0; from < member.size(); ++from) {
    const Values all = small_numbers(dtype, total(from) * kColumns, from, 1);
    const auto begin = all.begin() + sent_before(from, member.index()) * kColumns;
    counts.push_back(split(from, member.index()));
    expected.insert(expected.end(), begin, begin + counts.back() * kColumns);
  }
  const int own = member.index();
  Submission submission = member.call(Operation::kAlltoall, dtype, {total(own), kColumns});
  for (int to = 0; !equal && to < member.size(); ++to) submission.splits.push_back(split(own, to));
  const Values found = member.run(submission, small_numbers(dtype, total(own) * kColumns, own, 1),
                                  expected.size(), false);
  ASSERT_EQ(found, expected) << row_of(dtype).name << " × " << rows;
  ASSERT_EQ(member.outcome().received_rows, counts);
}

void check_all(Member& member, DType dtype, std::int64_t count) {
  check_allreduce(member, dtype, count);
  check_broadcast(member, dtype, count);
  check_allgather(member, dtype, count / 20);
  check_reducescatter(member, dtype, count / 3);
  check_alltoall(member, dtype, count / 20, false);
  check_alltoall(member, dtype, count / 20, true);
}

void check_everything(Member& member) {
  for (const DTypeRow& row : kDTypes) {
    for (const std::int64_t count : kCounts) check_all(member, row.dtype, count);
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
                         [](const auto& instance) { return shape_text(instance.param); });

TEST_P(Conformance, EveryOperationInTheWorldAndInAGroup) {
  std::vector<std::vector<int>> groups;
  if (size() > 2) groups = {{0, size() - 1}};
  run_job(GetParam(), groups, [](Engine& engine) {
    for (GroupId group = 0; group < 2; ++group) {
      Member member(engine, group);
      if (member.included()) check_everything(member);
    }
  });
}

TEST_P(Conformance, ManyWindows) {
  run_job(GetParam(), {}, [](Engine& engine) {
    Member member(engine, kWorld);
    check_all(member, kLargeDTypes[static_cast<std::size_t>(size()) % 4], kLarge);
  });
}

// Some of these shapes have rows but no elements.
TEST_P(Conformance, TensorsWithoutElementsOrDimensions) {
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
