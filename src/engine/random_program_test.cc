// Random programs. Every rank submits the same calls in its own order, alone or in batches, and
// waits for them in another order. Some calls differ between the ranks and must be rejected on all
// ranks. At the end the ranks run out of data at different times and join. A seed always gives the
// same program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "engine/job_in_test.h"
#include "engine/reference_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937;

constexpr int kRounds = 3;
constexpr int kCallsPerRound = 25;
constexpr std::int64_t kColumns = 2;

int between(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

enum class Deviation { kNone, kDType, kShape, kReduceOp, kScale, kOperation, kCallError };

// A call as all ranks plan it.
struct CallPlan {
  std::string name;
  Operation operation = Operation::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  GroupId group = kWorld;
  std::int64_t rows = 0;
  int root_index = 0;
  Deviation deviation = Deviation::kNone;  // how the call of the group's last member differs
};

CallPlan random_plan(Random& random, int number, int groups) {
  constexpr std::array kOperationsHere = {Operation::kAllreduce, Operation::kBroadcast,
                                          Operation::kAllgather, Operation::kReducescatter,
                                          Operation::kAlltoall};
  static_assert(kOperationsHere.size() == kOperations.size() - 2, "all but barrier and join");
  constexpr std::array<std::int64_t, 6> kRows = {0, 1, 3, 40, 900, 20'000};
  CallPlan plan;
  plan.name = "call" + std::to_string(number);
  plan.operation = kOperationsHere[static_cast<std::size_t>(between(random, 0, 4))];
  plan.dtype = kDTypes[static_cast<std::size_t>(between(random, 0, 10))].dtype;
  constexpr std::array kOpsHere = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                   ReduceOp::kMax, ReduceOp::kProduct};
  plan.op = kOpsHere[static_cast<std::size_t>(between(random, 0, 4))];
  if (plan.dtype == DType::kBool && plan.op == ReduceOp::kAverage) plan.op = ReduceOp::kMax;
  plan.group = static_cast<GroupId>(between(random, 0, groups - 1));
  plan.rows = kRows[static_cast<std::size_t>(between(random, 0, 5))];
  plan.root_index = between(random, 0, 7);
  if (between(random, 0, 5) == 0) plan.deviation = static_cast<Deviation>(between(random, 1, 6));
  const bool reduces = row_of(plan.operation).reduces;
  if (!reduces && plan.deviation == Deviation::kReduceOp) plan.deviation = Deviation::kDType;
  if (!reduces && plan.deviation == Deviation::kScale) plan.deviation = Deviation::kShape;
  return plan;
}

// One call of one rank, and its expected result.
struct Call {
  const CallPlan* plan = nullptr;
  Submission submission;
  std::vector<std::byte> source;
  std::vector<std::byte> target;
  Values expected;
  bool rejected = false;
  Handle handle = 0;
};

// How many rows a member's input has. In an alltoall, each member gets `plan.rows` of them.
std::int64_t rows_of(const CallPlan& plan, int member, int members) {
  if (plan.operation == Operation::kAllgather) return plan.rows * (member % 3);
  if (plan.operation == Operation::kAlltoall) return plan.rows * members;
  return plan.rows;
}

Values part_of(const Values& all, std::int64_t row, std::int64_t rows) {
  return {all.begin() + row * kColumns, all.begin() + (row + rows) * kColumns};
}

Values expected_of(const CallPlan& plan, int member, const std::vector<Values>& inputs) {
  const int members = static_cast<int>(inputs.size());
  const auto root = static_cast<std::size_t>(plan.root_index % members);
  Values result;
  switch (plan.operation) {
    case Operation::kAllreduce:
      return rounded_to(plan.dtype, reduced(plan.dtype, plan.op, inputs));
    case Operation::kBroadcast:
      return inputs[root];
    case Operation::kReducescatter:
      return part_of(rounded_to(plan.dtype, reduced(plan.dtype, plan.op, inputs)),
                     first_scattered_row(plan.rows, members, member),
                     scattered_rows(plan.rows, members, member));
    default:
      break;
  }
  for (const Values& input : inputs) {
    const bool all = plan.operation == Operation::kAllgather;
    const Values part = all ? input : part_of(input, plan.rows * member, plan.rows);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

void deviate(Submission& submission, Deviation deviation) {
  switch (deviation) {
    case Deviation::kNone:
      return;
    case Deviation::kDType:  // a dtype that is not larger, so that the memory suffices
      submission.dtype = submission.dtype == DType::kUInt8 ? DType::kInt8 : DType::kUInt8;
      return;
    case Deviation::kShape:
      submission.shape.push_back(1);
      return;
    case Deviation::kReduceOp:
      submission.reduce_op =
          submission.reduce_op == ReduceOp::kMin ? ReduceOp::kMax : ReduceOp::kMin;
      return;
    case Deviation::kScale:
      submission.postscale = 0.25;
      return;
    case Deviation::kOperation:
      submission.operation = Operation::kBarrier;
      return;
    case Deviation::kCallError:
      submission.shape.clear();
      submission.root_rank = -1;
      submission.postscale = std::numeric_limits<double>::infinity();
      return;
  }
}

Call make_call(const CallPlan& plan, const std::vector<int>& ranks, int rank) {
  const int members = static_cast<int>(ranks.size());
  const int member = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  std::vector<Values> inputs;
  for (int other = 0; other < members; ++other)
    inputs.push_back(small_numbers(plan.dtype, rows_of(plan, other, members) * kColumns, other, 2));
  Call call;
  call.plan = &plan;
  call.expected = expected_of(plan, member, inputs);
  call.source = encoded(plan.dtype, inputs[static_cast<std::size_t>(member)]);
  call.target.resize(call.expected.size() * row_of(plan.dtype).bytes + 1);
  call.rejected = plan.deviation != Deviation::kNone && members > 1;
  Submission& submission = call.submission;
  submission.operation = plan.operation;
  submission.name = plan.name;
  submission.group = plan.group;
  submission.dtype = plan.dtype;
  submission.shape = {rows_of(plan, member, members), kColumns};
  submission.reduce_op = plan.op;
  submission.root_rank = ranks[static_cast<std::size_t>(plan.root_index % members)];
  submission.input = call.source.data();
  submission.output = call.target.data();
  if (call.rejected && member == members - 1) deviate(submission, plan.deviation);
  return call;
}

// Submits all calls of a round in this rank's own order, some of them in batches.
void submit_all(Engine& engine, std::vector<Call>& calls, Random& own) {
  std::ranges::shuffle(calls, own);
  for (std::size_t next = 0; next < calls.size();) {
    const auto remaining = static_cast<int>(calls.size() - next);
    const int count = std::min(remaining, between(own, 1, 4));
    std::vector<Submission> batch;
    for (int i = 0; i < count; ++i)
      batch.push_back(calls[next + static_cast<std::size_t>(i)].submission);
    const auto handles = engine.submit_batch(batch);
    ASSERT_TRUE(handles.ok()) << handles.status().message();
    for (const Handle handle : *handles) calls[next++].handle = handle;
  }
}

void check_outcome(Engine& engine, const Call& call) {
  const Outcome outcome = finish(engine, call.handle);
  if (call.rejected) {
    ASSERT_EQ(outcome.status.code(), StatusCode::kFixCall) << call.plan->name;
    ASSERT_THAT(outcome.status.message(), HasSubstr("`" + call.plan->name + "`"));
    ASSERT_TRUE(std::ranges::all_of(call.target, [](std::byte b) { return b == std::byte{0}; }));
    return;
  }
  ASSERT_EQ(outcome.status, Status()) << call.plan->name;
  const bool received = row_of(call.plan->operation).output_rule == OutputRule::kReceived;
  const std::byte* memory = received ? outcome.received.get() : call.target.data();
  ASSERT_EQ(decoded(call.plan->dtype, memory, call.expected.size()), call.expected)
      << row_of(call.plan->operation).name << " `" << call.plan->name << "` of "
      << row_of(call.plan->dtype).name;
}

void run_round(Engine& engine, const std::vector<CallPlan>& plans, Random& own) {
  const int rank = engine.topology().rank;
  std::vector<Call> calls;
  for (const CallPlan& plan : plans) {
    const auto ranks = engine.ranks_of(plan.group);
    if (std::ranges::count(ranks, rank) > 0) calls.push_back(make_call(plan, ranks, rank));
  }
  submit_all(engine, calls, own);
  std::ranges::shuffle(calls, own);
  for (const Call& call : calls) check_outcome(engine, call);
}

// Gathers `rows` rows of two elements from each rank that has not joined. An element of rank r is
// r + 1.
void gather_from_present(Engine& engine, const std::vector<bool>& is_present, std::int64_t rows) {
  const auto own_value = static_cast<float>(engine.topology().rank + 1);
  const std::vector<float> values(static_cast<std::size_t>(2 * rows), own_value);
  Submission submission;
  submission.operation = Operation::kAllgather;
  submission.dtype = DType::kFloat32;
  submission.shape = {rows, 2};
  submission.input = values.data();
  const Outcome outcome = finish(engine, engine.submit(submission));
  ASSERT_EQ(outcome.status, Status());
  std::vector<float> wanted;
  std::vector<std::int64_t> wanted_rows;
  for (std::size_t rank = 0; rank < is_present.size(); ++rank) {
    wanted_rows.push_back(is_present[rank] ? rows : 0);
    wanted.resize(wanted.size() + static_cast<std::size_t>(2 * wanted_rows.back()),
                  static_cast<float>(rank + 1));
  }
  ASSERT_EQ(outcome.received_rows, wanted_rows);
  const auto* const received = reinterpret_cast<const float*>(outcome.received.get());
  ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), received));
}

// Rank r has steps[r] more tensors. A rank that has no tensors left joins.
void run_out_of_data(Engine& engine, const std::vector<int>& steps) {
  const int rank = engine.topology().rank;
  for (int step = 0; step < steps[static_cast<std::size_t>(rank)]; ++step) {
    std::vector<float> values(1000, 1.0F);
    ASSERT_EQ(allreduce(engine, values), Status());
    const auto remaining = std::ranges::count_if(steps, [&](int all) { return all > step; });
    ASSERT_EQ(values.back(), static_cast<float>(remaining));
    std::vector<bool> is_present;
    for (const int all : steps) is_present.push_back(all > step);
    constexpr std::array<std::int64_t, 3> kRows = {0, 3, 50'000};  // none, inline, two windows
    gather_from_present(engine, is_present, kRows[static_cast<std::size_t>(step % 3)]);
  }
  Submission join;
  join.operation = Operation::kJoin;
  const Outcome outcome = finish(engine, engine.submit(join));
  ASSERT_EQ(outcome.status, Status());
  ASSERT_EQ(steps[static_cast<std::size_t>(outcome.last_joined)], *std::ranges::max_element(steps));
}

void run_program(unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const int size = between(random, 1, 6);
  std::vector<std::vector<int>> groups;
  if (size > 2) groups = {{0, 1}, {1, size - 1}};
  run_job(size, groups, [&](Engine& engine) {
    Random shared_random(seed);  // gives the same numbers on all ranks
    Random own_random(seed * 1000 + static_cast<unsigned>(engine.topology().rank));
    for (int round = 0; round < kRounds; ++round) {
      std::vector<CallPlan> plans;
      for (int number = 0; number < kCallsPerRound; ++number)
        plans.push_back(random_plan(shared_random, number, 1 + static_cast<int>(groups.size())));
      run_round(engine, plans, own_random);
      std::vector<int> steps;
      for (int rank = 0; rank < size; ++rank) steps.push_back(between(shared_random, 0, 4));
      run_out_of_data(engine, steps);
    }
  });
}

TEST(RandomProgram, EveryRankGetsTheReferenceResults) {
  for (unsigned seed = 1; seed <= 25; ++seed) {
    run_program(seed);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace farandole
