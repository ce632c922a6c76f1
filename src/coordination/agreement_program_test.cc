// Runs whole programs on all members of a group. Each program submits and waits at its own pace and
// in its own order; messages and steps take random times. If a program repeats its calls, it must
// need no more messages after some time.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordination/agreement.h"
#include "coordination/members_in_test.h"

namespace farandole {
namespace {

using Random = std::mt19937_64;
using Names = std::vector<std::string>;

struct Action {
  enum class Kind { kSubmit, kWait, kWaitForAll, kMark };
  Kind kind;
  std::string name;
  DType dtype = DType::kFloat32;
  Operation operation = Operation::kAllreduce;
  std::uint32_t batch = 0;
};
using Program = std::vector<Action>;

Action submit(std::string name) { return {Action::Kind::kSubmit, std::move(name)}; }
Action wait(std::string name) { return {Action::Kind::kWait, std::move(name)}; }
Action wait_for_all() { return {Action::Kind::kWaitForAll, ""}; }
// When all programs have passed this action, the test begins to count messages.
Action mark() { return {Action::Kind::kMark, ""}; }

// The user's program on one member, while it runs.
class RunningProgram {
 public:
  RunningProgram(int member, Program program) : member_(member), program_(std::move(program)) {}

  bool is_done() const { return next_ == program_.size(); }
  int marks() const { return marks_; }

  // Does the next action if this is possible now; otherwise returns false.
  bool try_next_action(Members& members) {
    if (is_done()) return false;
    const auto& action = program_[next_];
    update_completed(members);
    if (action.kind == Action::Kind::kWait && !has_observed(action.name)) return false;
    if (action.kind == Action::Kind::kWaitForAll && !members.has_nothing_in_flight(member_))
      return false;
    ++next_;
    if (action.kind == Action::Kind::kMark) ++marks_;
    if (action.kind == Action::Kind::kWaitForAll) {
      context_.waits += static_cast<std::uint32_t>(unobserved_.size());
      unobserved_.clear();
    }
    if (action.kind == Action::Kind::kWait && unobserved_.erase(action.name) == 1) ++context_.waits;
    if (action.kind != Action::Kind::kSubmit) return true;
    if (unobserved_.empty()) ++context_.quiescent_points;
    unobserved_.insert(action.name);
    context_.batch = action.batch;
    const Signature signature = {.name = action.name,
                                 .operation = action.operation,
                                 .dtype = action.dtype,
                                 .dimensions = {10}};
    members.submit(member_, signature, context_);
    return true;
  }

 private:
  void update_completed(Members& members) {
    completed_.clear();
    for (const auto& name : unobserved_)
      if (!members.is_in_flight(member_, name)) completed_.insert(name);
  }
  bool has_observed(const std::string& name) const {
    return !unobserved_.contains(name) || completed_.contains(name);
  }

  int member_;
  Program program_;
  std::size_t next_ = 0;
  int marks_ = 0;
  std::set<std::string> unobserved_;
  std::set<std::string> completed_;
  SubmissionContext context_;
};

struct RunResult {
  int messages_after_mark = 0;
  std::vector<std::string> log;  // what member 0 has completed
};

// Runs all programs to their end and checks that all members have completed the same steps. Time
// passes if nothing else can happen. It also passes in about `early_ticks_per_mille` of 1000
// rounds.
RunResult run(std::vector<Program> programs, Random& random, const AgreementOptions& options = {},
              unsigned early_ticks_per_mille = 0) {
  std::vector<int> ranks;
  for (std::size_t member = 0; member < programs.size(); ++member)
    ranks.push_back(static_cast<int>(member));
  Members members(ranks, options);
  std::vector<RunningProgram> running;
  for (std::size_t member = 0; member < programs.size(); ++member)
    running.emplace_back(static_cast<int>(member), std::move(programs[member]));

  RunResult result;
  std::vector<std::vector<std::string>> logs(running.size());
  bool marked = false;
  const auto random_member = [&] { return static_cast<int>(random() % running.size()); };
  int idle = 0;
  const auto all_done = [&] { return std::ranges::all_of(running, &RunningProgram::is_done); };
  for (int round = 0; !all_done() && !testing::Test::HasFailure(); ++round) {
    if (round > 2000000 || idle > 100000) {
      ADD_FAILURE() << "the programs make no progress any more";
      break;
    }
    bool progress = false;
    const auto chosen = static_cast<std::size_t>(random_member());
    if (random() % 2 == 0) progress |= running[chosen].try_next_action(members);
    const auto member = random_member();
    if (random() % 2 == 0) progress |= members.advance(member);
    result.messages_after_mark += members.collect_messages();
    progress |=
        members.deliver_up_to(random_member(), random_member(), static_cast<int>(random() % 3));
    if (!marked && std::ranges::all_of(running, [](const RunningProgram& program) {
          return program.marks() > 0;
        })) {
      marked = true;
      result.messages_after_mark = 0;
    }
    for (std::size_t index = 0; index < running.size(); ++index)
      for (auto& text : members.take_log(static_cast<int>(index)))
        logs[index].push_back(std::move(text));
    idle = progress ? 0 : idle + 1;
    if (idle > 60 * static_cast<int>(running.size()))
      members.pass_time(std::chrono::milliseconds(11));
    if (random() % 1000 < early_ticks_per_mille) members.pass_time(std::chrono::milliseconds(6));
  }
  result.messages_after_mark += members.run();
  for (std::size_t index = 0; index < running.size(); ++index)
    for (auto& text : members.take_log(static_cast<int>(index))) logs[index].push_back(text);
  for (std::size_t index = 1; index < logs.size(); ++index) EXPECT_EQ(logs[index], logs[0]);
  result.log = logs[0];
  return result;
}

// Makes one program per member. In each iteration, each member submits the names that `superstep`
// returns, in a random order, and then waits for all of them.
std::vector<Program> programs_in_supersteps(int members, int iterations, int mark_at,
                                            const std::function<Names(int)>& superstep,
                                            Random& random) {
  std::vector<Program> programs(static_cast<std::size_t>(members));
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const auto names = superstep(iteration);
    for (auto& program : programs) {
      if (iteration == mark_at) program.push_back(mark());
      auto shuffled = names;
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      for (const auto& name : shuffled) program.push_back(submit(name));
      program.push_back(wait_for_all());
    }
  }
  return programs;
}

// Appends three submissions in a random order, and then a wait for one of them.
void append_superstep_part(Program& program, const std::string& part, Random& random) {
  Program actions = {submit(part + "0"), submit(part + "1"), submit(part + "2")};
  std::shuffle(actions.begin(), actions.end(), random);
  program.insert(program.end(), actions.begin(), actions.end());
  program.push_back(wait(part + "1"));
}

class Programs : public testing::TestWithParam<int> {
 protected:
  int members() { return 2 + static_cast<int>(random_() % 4); }

  Random random_{static_cast<std::uint64_t>(GetParam())};
};

TEST_P(Programs, OneSuperstepInAnyOrderEndsWithoutMessages) {
  const auto programs = programs_in_supersteps(
      members(), 30, 15, [](int) { return Names{"a", "b", "c", "d"}; }, random_);
  EXPECT_EQ(run(programs, random_).messages_after_mark, 0);
}

TEST_P(Programs, OneSuperstepIsFused) {
  const auto programs = programs_in_supersteps(
      members(), 30, 15, [](int) { return Names{"a", "b", "c", "d"}; }, random_);
  const auto result = run(programs, random_, {.fusion_bytes = 1000});
  EXPECT_EQ(result.messages_after_mark, 0);
  EXPECT_EQ(result.log.back().size(), 7U);
}

// All members submit in the same order, so there is no misprediction. The group still learns a
// plan, because the fusion in a plan saves steps.
TEST_P(Programs, ARepeatedQueueIsFused) {
  Program program;
  for (int iteration = 0; iteration < 30; ++iteration) {
    if (iteration == 15) program.push_back(mark());
    for (const auto* name : {"a", "b", "c"}) program.push_back(submit(name));
    program.push_back(wait_for_all());
  }
  const std::vector<Program> programs(static_cast<std::size_t>(members()), program);
  const auto result = run(programs, random_, {.fusion_bytes = 80});
  EXPECT_EQ(result.messages_after_mark, 0);
  EXPECT_EQ(result.log.back().size() + result.log[result.log.size() - 2].size(), 4U);
}

TEST_P(Programs, AlternatingSuperstepsEndWithoutMessages) {
  const auto programs = programs_in_supersteps(
      members(), 60, 40,
      [](int iteration) {
        return iteration % 3 == 0   ? Names{"a", "b", "c"}
               : iteration % 3 == 1 ? Names{"d", "e"}
                                    : Names{"f"};
      },
      random_);
  EXPECT_EQ(run(programs, random_, {.fusion_bytes = 1000}).messages_after_mark, 0);
}

// Two different supersteps share some names, as in a training loop with regular evaluation.
TEST_P(Programs, OverlappingSuperstepsEndWithoutMessages) {
  const auto programs = programs_in_supersteps(
      members(), 120, 80,
      [](int iteration) {
        return iteration % 4 == 3 ? Names{"a", "x", "y"} : Names{"a", "b", "c", "d"};
      },
      random_);
  EXPECT_EQ(run(programs, random_, {.fusion_bytes = 100}).messages_after_mark, 0);
}

TEST_P(Programs, NestedSuperstepsEndWithoutMessages) {
  const auto programs = programs_in_supersteps(
      members(), 120, 80,
      [](int iteration) { return iteration % 3 == 2 ? Names{"a"} : Names{"a", "b", "c"}; },
      random_);
  EXPECT_EQ(run(programs, random_).messages_after_mark, 0);
}

// Makes up to four supersteps of up to six names. The programs repeat a random cycle of up to six
// of these supersteps.
TEST_P(Programs, DisjointSuperstepsInARandomCycleEndWithoutMessages) {
  std::vector<Names> supersteps;
  for (auto count = 1 + random_() % 4; count > 0; --count) {
    Names names;
    for (auto size = 1 + random_() % 6; size > 0; --size)
      names.push_back(std::to_string(count) + "/" + std::to_string(size));
    supersteps.push_back(names);
  }
  std::vector<std::size_t> cycle;
  for (auto size = 1 + random_() % 6; size > 0; --size)
    cycle.push_back(random_() % supersteps.size());
  const auto programs = programs_in_supersteps(
      members(), 150, 110,
      [&](int iteration) {
        return supersteps[cycle[static_cast<std::size_t>(iteration) % cycle.size()]];
      },
      random_);
  const AgreementOptions options = {.fusion_bytes = static_cast<std::int64_t>(random_() % 200)};
  EXPECT_EQ(run(programs, random_, options).messages_after_mark, 0);
}

// In every iteration, each member waits for the same submissions before it makes later submissions.
TEST_P(Programs, WaitsInsideASuperstepEndWithoutMessages) {
  std::vector<Program> programs(static_cast<std::size_t>(members()));
  for (int iteration = 0; iteration < 60; ++iteration) {
    for (auto& program : programs) {
      if (iteration == 40) program.push_back(mark());
      append_superstep_part(program, "p", random_);
      append_superstep_part(program, "q", random_);
      append_superstep_part(program, "r", random_);
      program.push_back(wait_for_all());
    }
  }
  EXPECT_EQ(run(programs, random_, {.fusion_bytes = 1000}).messages_after_mark, 0);
}

// Names repeat, but supersteps do not. The programs run to their end, with the same log on every
// member.
TEST_P(Programs, SuperstepsThatDoNotRepeatComplete) {
  Random names_random(random_());
  const auto programs = programs_in_supersteps(
      members(), 60, 0,
      [&](int) {
        Names names;
        for (int index = 0; index < 8; ++index)
          if (names_random() % 2 == 0) names.push_back(std::to_string(index));
        return names;
      },
      random_);
  run(programs, random_, {.names_max = 1 + random_() % 12, .fusion_bytes = 100}, 5);
}

// Each program waits for the last call of a name before it submits the name again, but it never
// waits for all names.
TEST_P(Programs, ProgramsWithoutQuiescentPointsComplete) {
  std::vector<Program> programs(static_cast<std::size_t>(members()));
  for (auto& program : programs) {
    for (int iteration = 0; iteration < 60; ++iteration) {
      if (iteration == 40) program.push_back(mark());
      for (const auto* name : {"a", "b", "c"}) {
        program.push_back(wait(name));
        program.push_back(submit(name));
      }
    }
  }
  auto variants = programs;
  run(programs, random_);
  for (auto& program : variants) {
    program.insert(program.begin(), submit("z"));
    if (random_() % 2 == 0) std::swap(program[1], program[3]);
  }
  run(variants, random_, {.fusion_bytes = 100}, 5);
}

// Programs that compute for longer than the grace period cause needless raises. The test only
// checks that the programs run to their end.
TEST_P(Programs, ProgramsSlowerThanTheGraceTimeComplete) {
  const auto programs = programs_in_supersteps(
      members(), 60, 0, [](int) { return Names{"a", "b", "c", "d"}; }, random_);
  run(programs, random_, {.fusion_bytes = 100}, 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Programs, testing::Range(1, 31));

}  // namespace
}  // namespace farandole
