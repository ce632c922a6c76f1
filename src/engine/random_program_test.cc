// Random programs. Every rank submits the same calls in its own order, alone or in batches, and
// waits for them in another order. Some calls differ between the ranks and must be rejected on all
// ranks. At the end the ranks run out of data at different times and join. A seed always gives the
// same program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "collective/call_in_test.h"
#include "engine/hosts_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937;

constexpr std::size_t kRounds = 3;
constexpr int kCallsPerRound = 25;
constexpr std::int64_t kColumns = 2;

int random_between(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

enum class Deviation { kNone, kDType, kShape, kReduceOp, kScale, kOperation, kCallError };

// The plan of one call, which is the same on all ranks.
struct PlannedCall {
  std::string name;
  GroupId group = kWorld;
  std::vector<int> ranks;  // the ranks of the group
  PreparedCall prepared;
  Deviation deviation = Deviation::kNone;  // how the call of the group's last member differs

  const OperationRow& row() const { return row_of(prepared.call.operation); }
};

// Returns a random element of a range.
template <class Range>
const auto& random_element_of(Random& random, const Range& range) {
  return range[static_cast<std::size_t>(
      random_between(random, 0, static_cast<int>(range.size()) - 1))];
}

// The members of each host part of a group, as indices in `ranks`; empty if all are on one host.
std::vector<std::vector<int>> host_parts(const std::vector<int>& ranks, const HostOfRank& hosts) {
  std::vector<std::vector<int>> parts;
  std::vector<int> hosts_of_parts;
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    const int host = hosts[static_cast<std::size_t>(ranks[member])];
    const auto part_index = std::ranges::find(hosts_of_parts, host) - hosts_of_parts.begin();
    if (part_index == static_cast<std::ptrdiff_t>(hosts_of_parts.size())) {
      hosts_of_parts.push_back(host);
      parts.emplace_back();
    }
    parts[static_cast<std::size_t>(part_index)].push_back(static_cast<int>(member));
  }
  if (parts.size() == 1) parts.clear();
  return parts;
}

PlannedCall random_plan(Random& random, int number, const std::vector<std::vector<int>>& groups,
                        const HostOfRank& hosts) {
  constexpr std::array<std::int64_t, 6> kRows = {0, 1, 3, 40, 900, 20'000};
  constexpr std::array kReduceOps = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                     ReduceOp::kMax, ReduceOp::kProduct};
  auto operations = operations_with_steps();
  std::erase_if(operations, [](const auto& row) { return row.shape_rule == ShapeRule::kNone; });
  const OperationRow row = random_element_of(random, operations);
  const DType dtype = random_element_of(random, kDTypes).dtype;
  ReduceOp op = random_element_of(random, kReduceOps);
  if (!is_supported(row.operation, dtype, op)) op = ReduceOp::kMax;
  const auto group =
      static_cast<GroupId>(random_between(random, 0, static_cast<int>(groups.size()) - 1));
  auto call = random_call(random,
                          {.operation = row.operation,
                           .reduction = {.dtype = dtype, .op = op},
                           .row_elements = kColumns},
                          static_cast<int>(groups[group].size()), random_element_of(random, kRows));
  call.joined.clear();  // the ranks join at the end of a round
  call.hosts = host_parts(groups[group], hosts);
  auto deviation = Deviation::kNone;
  if (random_between(random, 0, 5) == 0)
    deviation = static_cast<Deviation>(random_between(random, 1, 6));
  if (!row.reduces && deviation == Deviation::kReduceOp) deviation = Deviation::kDType;
  if (!row.reduces && deviation == Deviation::kScale) deviation = Deviation::kShape;
  return {.name = "call" + std::to_string(number),
          .group = group,
          .ranks = groups[group],
          .prepared = PreparedCall(std::move(call)),
          .deviation = deviation};
}

// One call of one rank, and its expected result.
struct Call {
  const PlannedCall* plan = nullptr;
  std::size_t member = 0;
  Submission submission;
  Buffer input_buffer;
  Buffer output_buffer;
  bool must_be_rejected = false;
  Handle handle = 0;

  const Buffer& expected() const { return plan->prepared.expected[member]; }
};

void apply_deviation(Submission& submission, Deviation deviation) {
  switch (deviation) {
    case Deviation::kNone:
      return;
    case Deviation::kDType:  // dtypes of one byte, so the memory is large enough
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

Call make_call(const PlannedCall& plan, int rank) {
  const CallInTest& arguments = plan.prepared.call;
  Call call;
  call.plan = &plan;
  call.member = static_cast<std::size_t>(std::ranges::find(plan.ranks, rank) - plan.ranks.begin());
  call.input_buffer = plan.prepared.inputs[call.member];
  call.output_buffer.resize(call.expected().size() + 1);
  call.must_be_rejected = plan.deviation != Deviation::kNone && plan.ranks.size() > 1;
  Submission& submission = call.submission;
  submission.operation = arguments.operation;
  submission.name = plan.name;
  submission.group = plan.group;
  submission.dtype = arguments.reduction.dtype;
  submission.shape = {arguments.rows[call.member], kColumns};
  submission.reduce_op = arguments.reduction.op;
  submission.prescale = arguments.reduction.prescale;
  submission.postscale = arguments.reduction.postscale;
  submission.root_rank = plan.ranks[static_cast<std::size_t>(arguments.root)];
  if (!arguments.splits.empty()) submission.splits = arguments.splits[call.member];
  submission.input = call.input_buffer.data();
  submission.output = call.output_buffer.data();
  if (call.must_be_rejected && rank == plan.ranks.back())
    apply_deviation(submission, plan.deviation);
  return call;
}

// Submits all calls of a round in this rank's own order, some of them in batches.
void submit_all(Engine& engine, std::vector<Call>& calls, Random& own_random) {
  std::ranges::shuffle(calls, own_random);
  for (std::size_t next_call = 0; next_call < calls.size();) {
    const auto remaining_calls = static_cast<int>(calls.size() - next_call);
    const int count = std::min(remaining_calls, random_between(own_random, 1, 4));
    std::vector<Submission> batch;
    for (int i = 0; i < count; ++i)
      batch.push_back(calls[next_call + static_cast<std::size_t>(i)].submission);
    const auto handles = engine.submit_batch(batch);
    ASSERT_TRUE(handles.ok()) << handles.status().message();
    for (const Handle handle : *handles) calls[next_call++].handle = handle;
  }
}

void check_outcome(Engine& engine, const Call& call) {
  const Outcome outcome = finish(engine, call.handle);
  if (call.must_be_rejected) {
    ASSERT_EQ(outcome.status.code(), StatusCode::kFixCall) << call.plan->name;
    ASSERT_THAT(outcome.status.message(), HasSubstr("`" + call.plan->name + "`"));
    ASSERT_TRUE(
        std::ranges::all_of(call.output_buffer, [](std::byte b) { return b == std::byte{0}; }));
    return;
  }
  ASSERT_EQ(outcome.status, Status()) << call.plan->name;
  const bool is_in_engine_memory = call.plan->row().output_rule == OutputRule::kEngineMemory;
  const std::byte* memory =
      is_in_engine_memory ? outcome.received.get() : call.output_buffer.data();
  ASSERT_TRUE(same_bytes({memory, memory + call.expected().size()}, call.expected()))
      << "`" << call.plan->name << "`: " << call.plan->prepared.call.text();
}

void run_round(Engine& engine, const std::vector<PlannedCall>& plans, Random& own_random) {
  const int rank = engine.topology().rank;
  std::vector<Call> calls;
  for (const PlannedCall& plan : plans)
    if (std::ranges::count(plan.ranks, rank) > 0) calls.push_back(make_call(plan, rank));
  submit_all(engine, calls, own_random);
  std::ranges::shuffle(calls, own_random);
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
  std::vector<float> expected_values;
  std::vector<std::int64_t> expected_rows;
  for (std::size_t rank = 0; rank < is_present.size(); ++rank) {
    expected_rows.push_back(is_present[rank] ? rows : 0);
    expected_values.resize(
        expected_values.size() + static_cast<std::size_t>(2 * expected_rows.back()),
        static_cast<float>(rank + 1));
  }
  ASSERT_EQ(outcome.received_rows, expected_rows);
  const auto* const received = reinterpret_cast<const float*>(outcome.received.get());
  ASSERT_TRUE(std::equal(expected_values.begin(), expected_values.end(), received));
}

// Rank r has steps[r] more tensors. A rank that has no tensors left joins.
void run_out_of_data(Engine& engine, const std::vector<int>& steps) {
  const int rank = engine.topology().rank;
  for (int step = 0; step < steps[static_cast<std::size_t>(rank)]; ++step) {
    std::vector<float> values(1000, 1.0F);
    ASSERT_EQ(allreduce(engine, values), Status());
    const auto present_ranks =
        std::ranges::count_if(steps, [&](int rank_steps) { return rank_steps > step; });
    ASSERT_EQ(values.back(), static_cast<float>(present_ranks));
    std::vector<bool> is_present;
    for (const int rank_steps : steps) is_present.push_back(rank_steps > step);
    // no data, an inline payload, two windows
    constexpr std::array<std::int64_t, 3> kRows = {0, 3, 50'000};
    gather_from_present(engine, is_present, kRows[static_cast<std::size_t>(step % 3)]);
  }
  Submission join;
  join.operation = Operation::kJoin;
  const Outcome outcome = finish(engine, engine.submit(join));
  ASSERT_EQ(outcome.status, Status());
  ASSERT_EQ(steps[static_cast<std::size_t>(outcome.last_joined)], *std::ranges::max_element(steps));
}

// The calls of one round, and how many more tensors each rank has after these calls.
struct Round {
  std::vector<PlannedCall> plans;
  std::vector<int> steps;
};

Round random_round(Random& random, const std::vector<std::vector<int>>& groups,
                   const HostOfRank& hosts) {
  Round round;
  for (int number = 0; number < kCallsPerRound; ++number)
    round.plans.push_back(random_plan(random, number, groups, hosts));
  while (round.steps.size() < groups[kWorld].size())
    round.steps.push_back(random_between(random, 0, 4));
  return round;
}

// The ranks are on up to `hosts_max` hosts.
void run_program(unsigned seed, int hosts_max) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const int size = random_between(random, 1, 6);
  std::vector<std::vector<int>> groups;
  if (size > 2) groups = {{0, 1}, {1, size - 1}};
  auto groups_with_world = groups;
  groups_with_world.emplace(groups_with_world.begin(), static_cast<std::size_t>(size));
  std::iota(groups_with_world[kWorld].begin(), groups_with_world[kWorld].end(), 0);
  HostOfRank hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(random_between(random, 0, hosts_max - 1));
  std::vector<Round> rounds;
  while (rounds.size() < kRounds) rounds.push_back(random_round(random, groups_with_world, hosts));
  run_job(hosts, groups, [&](Engine& engine) {
    Random own_random(seed * 1000 + static_cast<unsigned>(engine.topology().rank));
    for (const Round& round : rounds) {
      run_round(engine, round.plans, own_random);
      run_out_of_data(engine, round.steps);
    }
  });
}

TEST(RandomProgram, EveryRankGetsTheReferenceResults) {
  for (unsigned seed = 1; seed <= 25; ++seed) {
    run_program(seed, 1);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(RandomProgram, EveryRankGetsTheReferenceResultsOnSeveralHosts) {
  for (unsigned seed = 1; seed <= 25; ++seed) {
    run_program(seed, 3);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace farandole
