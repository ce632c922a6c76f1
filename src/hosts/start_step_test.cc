// Tests the guarantees of steps of groups on several hosts: user memory is not written before all
// members have entered, different steps are a misprediction, and invalid notes are a mismatch.
#include "hosts/start_step.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "hosts/hosts_in_test.h"

namespace farandole {
namespace {

const HostMembers kInterleaved = {{0, 2, 4}, {1, 3}};
constexpr int kMembers = 5;
constexpr std::int64_t kRowsOfSeveralWindows = 200'000;

class HostsGuarantees : public ::testing::TestWithParam<OperationRow> {
 protected:
  void start(std::int64_t rows, const std::vector<StepIdentity>& identities) {
    CallInTest call = {.operation = GetParam().operation,
                       .reduction = {.dtype = DType::kInt64},
                       .row_elements = 2};
    call.hosts = kInterleaved;
    prepared_ = std::make_unique<PreparedCall>(random_call(random_, call, kMembers, rows));
    steps_.clear();
    calls_.clear();
    for (int member = 0; member < kMembers; ++member) {
      calls_.push_back(std::make_unique<MemberCallInTest>(*prepared_, member));
      steps_.push_back(calls_.back()->step(cluster_.group(member),
                                           identities[static_cast<std::size_t>(member)]));
    }
  }
  void start(std::int64_t rows, const StepIdentity& identity) {
    start(rows, std::vector<StepIdentity>(kMembers, identity));
  }
  Progress advance_member(int member) { return advance(steps_[static_cast<std::size_t>(member)]); }
  // Advances all members except `excluded_member` until they make no more progress. Returns the
  // last result of each member.
  std::vector<Progress> run(int excluded_member = -1) {
    std::vector<Progress> results(kMembers, Progress::kAdvanced);
    for (int turn = 0; turn < 100'000; ++turn) {
      const auto member = static_cast<int>(random_below(random_, kMembers));
      Progress& result = results[static_cast<std::size_t>(member)];
      const bool is_over = result != Progress::kPending && result != Progress::kAdvanced;
      if (member != excluded_member && !is_over) result = advance_member(member);
      cluster_.network().move(random_);
      const bool all_wait = std::ranges::all_of(
          results, [](Progress progress) { return progress != Progress::kAdvanced; });
      if (all_wait && turn > 2000) break;
    }
    return results;
  }
  void expect_untouched() const {
    for (const auto& call : calls_) EXPECT_TRUE(call->is_untouched());
  }
  void expect_results() {
    EXPECT_EQ(run(), std::vector<Progress>(kMembers, Progress::kDone));
    for (const auto& call : calls_) call->expect_result();
  }

  std::mt19937 random_{3};
  HostsInTest cluster_{kInterleaved, {.bytes_per_move = 500'000}};
  std::unique_ptr<PreparedCall> prepared_;
  std::vector<std::unique_ptr<MemberCallInTest>> calls_;
  std::vector<CollectiveStep> steps_;
};

TEST_P(HostsGuarantees, nothing_is_written_before_all_have_entered) {
  std::uint32_t sequence = 0;
  for (const std::int64_t rows : {std::int64_t{5}, kRowsOfSeveralWindows})
    for (int last_member = 0; last_member < kMembers; ++last_member) {
      start(rows, step_identity(++sequence));
      for (const Progress result : run(last_member))
        EXPECT_TRUE(result == Progress::kPending || result == Progress::kAdvanced);
      expect_untouched();
      expect_results();
    }
}

TEST_P(HostsGuarantees, hosts_in_different_steps_mispredict_and_may_enter_again) {
  for (const std::int64_t rows : {std::int64_t{5}, kRowsOfSeveralWindows}) {
    const std::uint32_t sequence = rows == 5 ? 1 : 2;
    std::vector<StepIdentity> identities(kMembers,
                                         {.generation = 1, .sequence = sequence, .id = 7});
    for (const int member : kInterleaved[1]) identities[static_cast<std::size_t>(member)].id = 8;
    start(rows, identities);
    const std::vector<Progress> results = run();
    for (int member = 0; member < kMembers; ++member) {
      EXPECT_EQ(results[static_cast<std::size_t>(member)],
                cluster_.makes_note(member) ? Progress::kMisprediction : Progress::kPending);
      cluster_.group(member).board->roll_back();
    }
    expect_untouched();
    start(rows, {.generation = 2, .sequence = sequence, .id = 9});
    expect_results();
  }
}

// Member 2 enters another step than the other members of its host, so this host never tells the
// other hosts that all its members have entered the step.
TEST_P(HostsGuarantees, a_misprediction_on_one_host_leaves_the_others_waiting) {
  std::vector<StepIdentity> identities(kMembers, step_identity(1));
  identities[2].id = 8;
  start(10, identities);
  const std::vector<Progress> results = run();
  for (int member = 0; member < kMembers; ++member) {
    EXPECT_EQ(results[static_cast<std::size_t>(member)],
              cluster_.host_of(member) == 0 ? Progress::kMisprediction : Progress::kPending);
    cluster_.group(member).board->roll_back();
  }
  expect_untouched();
  start(10, {.generation = 2, .sequence = 1, .id = 9});
  expect_results();
}

// The test writes an invalid entry for member 3.
TEST_P(HostsGuarantees, an_invalid_entry_is_a_mismatch_on_all_hosts) {
  start(10, step_identity(1));
  cluster_.group(3).board->enter(1, 1, {.identity = step_identity(1).id, .declared_count = -1});
  std::vector<Progress> results = run(3);
  results[3] = Progress::kMismatch;
  EXPECT_EQ(results, std::vector<Progress>(kMembers, Progress::kMismatch));
  expect_untouched();
}

INSTANTIATE_TEST_SUITE_P(Table, HostsGuarantees, ::testing::ValuesIn(operations_with_steps()),
                         [](const auto& test) { return std::string(test.param.name); });

// The members of host 1 have a tensor of another size than the other members.
class HostsMismatch : public ::testing::TestWithParam<Operation> {
 protected:
  static void run(std::int64_t bytes) {
    HostsInTest cluster({{0, 1}, {2}});
    std::vector<std::byte> input(static_cast<std::size_t>(bytes + 8));
    std::vector<CollectiveStep> steps;
    for (int member = 0; member < 3; ++member) {
      const std::int64_t count = cluster.host_of(member) == 1 ? bytes + 8 : bytes;
      steps.push_back(choose_step(cluster.group(member), step_identity(1),
                                  {.operation = GetParam(),
                                   .count = count,
                                   .rows = count,
                                   .row_bytes = 1,
                                   .input = input.data()}));
    }
    std::mt19937 random(1);
    std::vector<Progress> results(3, Progress::kPending);
    for (int turn = 0; turn < 300; ++turn) {
      const std::size_t member = random() % 3;
      if (results[member] == Progress::kPending) results[member] = advance(steps[member]);
      cluster.network().move(random);
    }
    EXPECT_EQ(results, std::vector<Progress>(3, Progress::kMismatch));
  }
};

TEST_P(HostsMismatch, different_sizes_on_different_hosts_are_a_mismatch) {
  run(100);
  run(100'000);
}

INSTANTIATE_TEST_SUITE_P(Table, HostsMismatch,
                         ::testing::Values(Operation::kAllreduce, Operation::kReducescatter,
                                           Operation::kBroadcast),
                         [](const auto& test) { return std::string(row_of(test.param).name); });

TEST(StepsBetweenHosts, impossible_operations_are_rejected) {
  Group group;
  EXPECT_TRUE(supports(group, Operation::kAllreduce).ok());
  HostParts parts;
  for (int host = 0; host < 256; ++host) {
    parts.members.emplace_back();
    for (int index = 0; index < 8; ++index) parts.members.back().push_back(8 * host + index);
  }
  group.parts = parts;
  EXPECT_TRUE(supports(group, Operation::kAllreduce).ok());
  EXPECT_TRUE(supports(group, Operation::kAllgather).ok());
  const Status status = supports(group, Operation::kAlltoall);
  EXPECT_EQ(status.code(), StatusCode::kFixCall);
  EXPECT_NE(status.message().find("2048 members on 256 hosts"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace farandole
