// Explores the sequences of flags of the algorithms. There are two, three or four members, and one
// of them may die at any point. The explorer finds no error in the shipped code, and it finds every
// planted bug. The output says which jobs were explored to their end ("holds"), and which only to a
// bound. FARANDOLE_MODEL_STATES raises this bound.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "companions.h"
#include "explorer.h"
#include "flow_job.h"
#include "flow_member.h"

namespace farandole::model {
namespace {

using testing::HasSubstr;

// The explorer visits at most this many states of a large job. Set FARANDOLE_MODEL_STATES to
// 20000000 to explore such a job to its end, which takes minutes.
constexpr std::uint64_t kStatesMax = 100'000;

// A flow with its name in the output.
struct NamedFlow {
  const char* name;
  Flow flow;
};
constexpr std::array<bool, kFlowMembersMax> kAllExpose = {true, true, true, true};
constexpr std::array<bool, kFlowMembersMax> kFirstExposes = {true};
constexpr NamedFlow kBarrier = {"Barrier", {.algorithm = FlowAlgorithm::kBarrier, .rounds = 0}};
constexpr NamedFlow kOneShotInline = {"OneShotInline", {.is_inline = true}};
constexpr NamedFlow kOneShotStaged = {"OneShotStaged", {}};
constexpr NamedFlow kRoundsStaged = {"Rounds", {.rounds = kPartsMin + 2}};
constexpr NamedFlow kRoundsExposed = {"RoundsExposed", {.rounds = 2, .exposes = kAllExpose}};
constexpr NamedFlow kRoundsMixed = {"RoundsMixed", {.rounds = 2, .exposes = kFirstExposes}};
constexpr NamedFlow kTwoShotsStaged = {"TwoShots",
                                       {.algorithm = FlowAlgorithm::kTwoShots, .rounds = 4}};
constexpr NamedFlow kTwoShotsExposed = {
    "TwoShotsExposed", {.algorithm = FlowAlgorithm::kTwoShots, .exposes = kAllExpose}};
constexpr NamedFlow kTwoShotsMixed = {
    "TwoShotsMixed",
    {.algorithm = FlowAlgorithm::kTwoShots, .rounds = 2, .exposes = kFirstExposes}};
constexpr std::array kFlows = {kBarrier,        kOneShotInline,   kOneShotStaged,
                               kRoundsStaged,   kRoundsExposed,   kRoundsMixed,
                               kTwoShotsStaged, kTwoShotsExposed, kTwoShotsMixed};

Finding explore_flow(const Flow& flow, const Options& options, const Limits& limits) {
  FlowJob job(flow, options);
  Scenario scenario = scenario_of(job, [&](int number) -> std::unique_ptr<ModelThread> {
    if (job.slots() == 1) return std::make_unique<FlowMember<1>>(job, number);
    return std::make_unique<FlowMember<2>>(job, number);
  });
  if (options.mortal >= 0 || options.quitter >= 0) scenario.guards = job.guards();
  return explore(scenario, limits);
}

void print(const std::string& name, const Finding& finding) {
  std::cout << name << ": " << name_of(finding.verdict)
            << (finding.text.empty() ? "" : ": " + finding.text) << " (" << finding.states
            << " states, " << finding.transitions << " moves)\n";
}

std::string name_of(const NamedFlow& named_flow, const Options& options, const Limits& limits) {
  return std::string(named_flow.name) + " of " + std::to_string(options.members) +
         (options.mortal >= 0 ? ", " + std::to_string(options.mortal) + " dies" : "") +
         (options.quitter >= 0 ? ", " + std::to_string(options.quitter) + " gives up" : "") +
         (options.spins ? ", spinning" : "") +
         (limits.partial_store_order ? ", partial store order" : "") +
         (limits.depth_first ? ", depth first" : "");
}

void expect_to_hold(const NamedFlow& named_flow, const Options& options, Limits limits = {}) {
  limits.end_must_be_reachable = options.spins;
  const Finding finding = explore_flow(named_flow.flow, options, limits);
  print(name_of(named_flow, options, limits), finding);
  EXPECT_EQ(finding.verdict, Verdict::kHolds) << finding.text << "\n" << finding.trace;
}

// In a job that is too large to be explored to its end, a depth-first search reaches the end of
// some runs. A breadth-first search reaches only their beginnings.
void expect_to_hold_up_to_the_bound(const NamedFlow& named_flow, const Options& options) {
  const char* const states = std::getenv("FARANDOLE_MODEL_STATES");
  for (const bool depth_first : {true, false}) {
    Limits limits = {.states_max = kStatesMax, .depth_first = depth_first};
    if (states != nullptr) limits.states_max = std::strtoull(states, nullptr, 10);
    limits.end_must_be_reachable = options.spins;
    const Finding finding = explore_flow(named_flow.flow, options, limits);
    print(name_of(named_flow, options, limits), finding);
    EXPECT_TRUE(finding.verdict == Verdict::kHolds || finding.verdict == Verdict::kBounded)
        << finding.text << "\n"
        << finding.trace;
    if (finding.verdict == Verdict::kHolds) break;
  }
}

std::string case_name(const testing::TestParamInfo<NamedFlow>& info) { return info.param.name; }

class FlowTest : public testing::TestWithParam<NamedFlow> {};

INSTANTIATE_TEST_SUITE_P(Flow, FlowTest, testing::ValuesIn(kFlows), case_name);

TEST_P(FlowTest, HoldsWithTwoMembers) {
  expect_to_hold(GetParam(), {.steps = 4});
  expect_to_hold(GetParam(), {.steps = 4}, {.partial_store_order = true});
}

TEST_P(FlowTest, HoldsWithTwoMembersAndADeath) {
  for (const int mortal : {0, 1}) expect_to_hold(GetParam(), {.steps = 3, .mortal = mortal});
  expect_to_hold(GetParam(), {.steps = 2, .mortal = 1}, {.partial_store_order = true});
}

TEST_P(FlowTest, HoldsWithThreeSpinningMembers) {
  const Flow& flow = GetParam().flow;
  const bool is_large = flow.rounds > (flow.algorithm == FlowAlgorithm::kTwoShots ? 1 : 2);
  for (const int mortal : {-1, 1}) {
    const Options options = {.members = 3, .steps = 3, .spins = true, .mortal = mortal};
    if (is_large)
      expect_to_hold_up_to_the_bound(GetParam(), options);
    else
      expect_to_hold(GetParam(), options);
  }
}

TEST_P(FlowTest, HoldsWithThreeMembersUpToTheBound) {
  expect_to_hold_up_to_the_bound(GetParam(), {.members = 3, .steps = 3});
  expect_to_hold_up_to_the_bound(GetParam(), {.members = 3, .steps = 3, .mortal = 2});
}

TEST_P(FlowTest, HoldsWithFourMembersUpToTheBound) {
  Options options = {.members = 4, .steps = 3, .spins = true};
  expect_to_hold_up_to_the_bound(GetParam(), options);
  options.mortal = 3;
  expect_to_hold_up_to_the_bound(GetParam(), options);
  options.spins = false;
  expect_to_hold_up_to_the_bound(GetParam(), options);
}

// One member may end at any time. Each step still has the same outcome on all members, and no
// member writes to memory after its owner has got it back.
TEST_P(FlowTest, HoldsWithTwoMembersAndAnEarlyEnd) {
  const bool is_large =
      GetParam().flow.algorithm == FlowAlgorithm::kTwoShots || GetParam().flow.rounds > 1;
  for (const int quitter : {0, 1}) {
    const Options options = {.steps = 2, .quitter = quitter};
    if (is_large)
      expect_to_hold_up_to_the_bound(GetParam(), options);
    else
      expect_to_hold(GetParam(), options);
  }
  if (is_large) return;
  expect_to_hold(GetParam(), {.steps = 2, .quitter = 1}, {.partial_store_order = true});
}

TEST_P(FlowTest, HoldsWithThreeSpinningMembersAndAnEarlyEnd) {
  const Options options = {.members = 3, .steps = 2, .spins = true, .quitter = 1};
  if (GetParam().flow.algorithm == FlowAlgorithm::kTwoShots || GetParam().flow.rounds > 2)
    expect_to_hold_up_to_the_bound(GetParam(), options);
  else
    expect_to_hold(GetParam(), options);
}

TEST_P(FlowTest, HoldsWithAnEarlyEndAndADeathUpToTheBound) {
  expect_to_hold_up_to_the_bound(
      GetParam(), {.members = 3, .steps = 2, .spins = true, .mortal = 2, .quitter = 1});
}

// All members see the misprediction. No member writes data, and no member sleeps for ever.
TEST(Flow, AMispredictionIsSeenByAll) {
  for (NamedFlow named_flow : {kBarrier, kRoundsStaged, kTwoShotsExposed}) {
    named_flow.flow.misprediction_at = 2;
    expect_to_hold(named_flow, {.steps = 3});
    expect_to_hold(named_flow, {.steps = 3, .mortal = 1});
    expect_to_hold(named_flow, {.members = 3, .steps = 3, .spins = true});
  }
}

constexpr std::string_view kSleeps = "sleeps on bell";

struct PlantedBug {
  const char* name;
  Bug bug;
  NamedFlow named_flow;
  std::string_view text;  // a part of the finding's text
};

const std::vector<PlantedBug>& planted_bugs() {
  using enum Bug;
  constexpr std::string_view kWrongPart = "a wrong part was taken";
  constexpr std::string_view kWrongCopy = "a wrong copy was reduced";
  constexpr std::string_view kWrongResult = "a wrong result was fetched";
  static const std::vector<PlantedBug> bugs = {
      {"weak phase store", kWeakPhase, kRoundsStaged, kSleeps},
      {"weak phase store", kWeakPhase, kTwoShotsStaged, kSleeps},
      {"phase without a bell", kPhaseWithoutBell, kRoundsStaged, kSleeps},
      {"phase without a bell", kPhaseWithoutBell, kRoundsExposed, kSleeps},
      {"phase without a bell", kPhaseWithoutBell, kTwoShotsStaged, kSleeps},
      {"enters the next step early", kEntersEarly, kBarrier, ""},
      {"enters the next step early", kEntersEarly, kOneShotStaged, ""},
      {"enters the next step early", kEntersEarly, kTwoShotsStaged, ""},
      {"one slot only", kOneSlot, kBarrier, ""},
      {"one slot only", kOneSlot, kOneShotInline, ""},
      {"one slot only", kOneSlot, kOneShotStaged, ""},
      // With one slot, a member that runs Rounds waits for ever for a phase that another member has
      // overwritten.
      {"one slot only", kOneSlot, kRoundsStaged, kSleeps},
      {"one slot only", kOneSlot, kTwoShotsStaged, kWrongResult},
      {"word before the data inside the line", kWordBeforePayload, kOneShotInline, ""},
      {"runs before all have arrived", kRunsBeforeAllArrive, kOneShotStaged, kWrongPart},
      {"runs before all have arrived", kRunsBeforeAllArrive, kTwoShotsExposed, kWrongCopy},
      {"output written before all have entered", kWritesEarly, kTwoShotsExposed, ""},
      {"output written before all have entered", kWritesEarly, kTwoShotsMixed, ""},
      {"phase before the data", kPhaseBeforeData, kRoundsStaged, kWrongPart},
      {"phase before the data", kPhaseBeforeData, kTwoShotsStaged, ""},
      {"takes a part without waiting", kConsumesWithoutWaiting, kRoundsStaged, kWrongPart},
      {"one part less", kOnePartTooFew, kRoundsStaged, kWrongPart},
      {"exposer does not wait", kExposerDoesNotWait, kRoundsExposed, kWrongPart},
      {"exposer does not wait", kExposerDoesNotWait, kRoundsMixed, kWrongPart},
      {"exposer does not wait", kFetchesWithoutWaiting, kTwoShotsExposed, "a wrong sum"},
      {"reduces without waiting", kReducesWithoutWaiting, kTwoShotsStaged, kWrongCopy},
      {"fetches without waiting", kFetchesWithoutWaiting, kTwoShotsStaged, kWrongResult},
      {"two parts for windows", kTwoWindowParts, kTwoShotsStaged, kWrongResult},
  };
  return bugs;
}

TEST(Flow, EveryPlantedBugIsFound) {
  for (const PlantedBug& planted : planted_bugs()) {
    const Finding finding =
        explore_flow(planted.named_flow.flow, {.steps = 3, .bug = planted.bug}, {});
    const std::string name = std::string(planted.name) + ", " + planted.named_flow.name;
    print(name, finding);
    EXPECT_EQ(finding.verdict, planted.text == kSleeps ? Verdict::kDeadlock : Verdict::kViolation)
        << name;
    EXPECT_THAT(finding.text, HasSubstr(std::string(planted.text))) << name;
  }
}

struct EndingBug {
  const char* name;
  Bug bug;
  NamedFlow named_flow;
  Options options;
  std::string_view text;
};

const std::vector<EndingBug>& ending_bugs() {
  using enum Bug;
  constexpr std::string_view kTwoOutcomes = "somewhere";
  constexpr std::string_view kWritten = "after its owner had it back";
  const Options quits = {.steps = 2, .quitter = 0};
  const Options dies = {.members = 3, .steps = 1, .spins = true, .mortal = 2};
  static const std::vector<EndingBug> bugs = {
      {"runs what is closed", kRunsClosedStep, kOneShotInline, quits, kTwoOutcomes},
      {"runs what is closed", kRunsClosedStep, kBarrier, quits, kTwoOutcomes},
      {"runs what is closed", kRunsClosedStep, kTwoShotsExposed, quits, ""},
      {"runs what is proposed", kRunsProposedStep, kOneShotInline, quits, ""},
      {"closes without a second check", kClosesWithoutSecondCheck, kOneShotInline, quits, ""},
      {"a proposal stays", kProposalStays, kOneShotInline, quits,
       "has left before it had completed"},
      {"returns without a fence", kReturnsWithoutFence, kTwoShotsExposed, dies, kWritten},
      {"returns without a fence", kReturnsWithoutFence, kTwoShotsMixed, dies, kWritten},
      {"death declared while it runs", kDeathWhileRunning, kTwoShotsExposed, dies, kWritten},
  };
  return bugs;
}

TEST(Flow, EveryEndingBugIsFound) {
  for (const EndingBug& planted : ending_bugs()) {
    Options options = planted.options;
    options.bug = planted.bug;
    const Finding finding =
        explore_flow(planted.named_flow.flow, options, {.depth_first = options.members > 2});
    const std::string name = std::string(planted.name) + ", " + planted.named_flow.name;
    print(name, finding);
    EXPECT_EQ(finding.verdict, Verdict::kViolation) << name;
    EXPECT_THAT(finding.text, HasSubstr(std::string(planted.text))) << name;
  }
}

// An exposer that sees a death gets its memory back while another member still reads it.
TEST(Flow, AStepCompletedWithGivenBackMemoryIsFound) {
  for (const NamedFlow& named_flow : {kRoundsExposed, kRoundsMixed}) {
    const Options options = {.members = 3,
                             .steps = 2,
                             .spins = true,
                             .mortal = 2,
                             .bug = Bug::kPublishesAfterTheExposerLeft};
    const Finding finding = explore_flow(named_flow.flow, options, {});
    print(std::string("publishes after the exposer left, ") + named_flow.name, finding);
    EXPECT_EQ(finding.verdict, Verdict::kViolation) << named_flow.name;
  }
}

// Spinning members never sleep, so they cannot show a bug that leaves a member asleep. All other
// bugs are found, even one that makes a member wait for ever.
TEST(Flow, ThreeSpinningMembersShowThePlantedBugs) {
  for (const PlantedBug& planted : planted_bugs()) {
    const bool waits_for_ever = planted.bug == Bug::kOneSlot && planted.text == kSleeps;
    if (planted.text == kSleeps && !waits_for_ever) continue;
    const Options options = {.members = 3, .steps = 3, .spins = true, .bug = planted.bug};
    const Finding finding =
        explore_flow(planted.named_flow.flow, options, {.end_must_be_reachable = true});
    const std::string name = std::string(planted.name) + ", " + planted.named_flow.name;
    print(name + ", three that spin", finding);
    EXPECT_TRUE(finding.verdict == Verdict::kViolation ||
                (waits_for_ever && finding.verdict == Verdict::kLivelock))
        << name;
  }
}

}  // namespace
}  // namespace farandole::model
