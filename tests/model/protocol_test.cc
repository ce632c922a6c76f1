// Explores the protocol of flags and doorbells: the shipped code holds, and every planted bug is
// found. FARANDOLE_MODEL_STATES raises the bound of the large jobs, for long runs.
#include <gmock/gmock.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "companions.h"
#include "explorer.h"
#include "job.h"

namespace farandole::model {
namespace {

using testing::HasSubstr;

struct Case {
  const char* name;
  Options options;
  Limits limits = {};
};

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

// Jobs that are small enough for the explorer to visit all their states.
const std::vector<Case>& whole_jobs() {
  static const std::vector<Case> jobs = {
      {"TwoInline", {.steps = 2}},
      {"TwoInlinePolling", {.steps = 2, .polls = true}},
      {"TwoInlineTwoSlots", {.steps = 4}},
      {"TwoTwoPhase", {.steps = 3, .two_phase = true}},
      {"TwoTwoPhaseTwoSlots", {.steps = 4, .two_phase = true}},
      {"TwoTwoPhasePolling", {.steps = 3, .two_phase = true, .polls = true}},
      {"ThreeInline", {.members = 3, .steps = 1}},
      {"FirstLeaves", {.steps = 2, .leaver = 0}},
      {"SecondLeavesTwoPhase", {.steps = 2, .two_phase = true, .leaver = 1}},
      {"SubmitWhileAsleep", {.steps = 2, .late_submit = true}},
      {"FirstDies", {.steps = 2, .mortal = 0}},
      {"SecondDies", {.steps = 2, .mortal = 1}},
      {"SecondDiesTwoPhase", {.steps = 2, .two_phase = true, .mortal = 1}},
      {"SecondDiesPolling", {.steps = 2, .polls = true, .mortal = 1}},
      {"Rollback", {.steps = 1, .rollback = true}},
      {"RollbackAfterMisprediction",
       {.steps = 1, .two_phase = true, .rollback = true, .identities_differ_from = 1}},
      {"PartialStoreOrder", {.steps = 3}, {.partial_store_order = true}},
      {"PartialStoreOrderTwoPhase", {.steps = 4, .two_phase = true}, {.partial_store_order = true}},
      {"PartialStoreOrderDeath", {.steps = 2, .mortal = 1}, {.partial_store_order = true}},
      {"PartialStoreOrderLeave", {.steps = 2, .leaver = 1}, {.partial_store_order = true}},
  };
  return jobs;
}

// Jobs with more states than a unit test can visit.
const std::vector<Case>& large_jobs() {
  static const std::vector<Case> jobs = {
      {"ThreeTwoSteps", {.members = 3, .steps = 2}},
      {"ThreeTwoSlots", {.members = 3, .steps = 3}},
      {"ThreeTwoPhase", {.members = 3, .steps = 2, .two_phase = true}},
      {"OneOfThreeDies", {.members = 3, .steps = 1, .mortal = 2}},
      {"OneOfThreeLeaves", {.members = 3, .steps = 2, .leaver = 1}},
      {"RollbackOfTwoSteps", {.steps = 2, .rollback = true, .identities_differ_from = 2}},
      {"RollbackTwoSlots", {.steps = 3, .two_phase = true, .rollback = true}},
      {"RollbackOfThree", {.members = 3, .steps = 1, .rollback = true}},
      {"RollbackOfThreeAfterMisprediction",
       {.members = 3, .steps = 1, .rollback = true, .identities_differ_from = 1}},
      {"RollbackOfTwoStepsTwoPhase",
       {.steps = 2, .two_phase = true, .rollback = true, .identities_differ_from = 1}},
      {"Four", {.members = 4, .steps = 1}},
      {"PartialStoreOrderRollback", {.steps = 2, .rollback = true}, {.partial_store_order = true}},
  };
  return jobs;
}

std::uint64_t states_of_large_jobs() {
  const char* const states = std::getenv("FARANDOLE_MODEL_STATES");
  return states != nullptr ? std::strtoull(states, nullptr, 10) : 60'000;
}

void print(const Case& test_case, const Finding& finding) {
  std::cout << test_case.name << ": " << name_of(finding.verdict)
            << (finding.text.empty() ? "" : ": " + finding.text) << " (" << finding.states
            << " states, " << finding.transitions << " moves)\n";
}

class WholeJob : public testing::TestWithParam<Case> {};

TEST_P(WholeJob, Holds) {
  Job job(GetParam().options);
  const Finding finding = explore(scenario_of(job), GetParam().limits);
  print(GetParam(), finding);
  EXPECT_EQ(finding.verdict, Verdict::kHolds) << finding.text << "\n" << finding.trace;
}

INSTANTIATE_TEST_SUITE_P(Protocol, WholeJob, testing::ValuesIn(whole_jobs()), case_name);

class LargeJob : public testing::TestWithParam<Case> {};

// In such a job, a depth-first search reaches the end of some runs. A breadth-first search reaches
// only their beginnings.
TEST_P(LargeJob, HoldsUpToTheBound) {
  for (const bool depth_first : {false, true}) {
    Job job(GetParam().options);
    Limits limits = GetParam().limits;
    limits.states_max = states_of_large_jobs();
    limits.depth_first = depth_first;
    const Finding finding = explore(scenario_of(job), limits);
    print(GetParam(), finding);
    EXPECT_TRUE(finding.verdict == Verdict::kHolds || finding.verdict == Verdict::kBounded)
        << finding.text << "\n"
        << finding.trace;
  }
}

INSTANTIATE_TEST_SUITE_P(Protocol, LargeJob, testing::ValuesIn(large_jobs()), case_name);

struct PlantedBug {
  const char* name;
  Bug bug;
  Verdict verdict;
  const char* text;  // a part of the finding's text
  Options options = {};
  bool depth_first = false;
};

// The bugs that a review of the protocol's first draft listed, and similar ones.
const std::vector<PlantedBug>& planted_bugs() {
  using enum Bug;
  constexpr auto kStuck = Verdict::kDeadlock;
  constexpr auto kBroken = Verdict::kViolation;
  constexpr const char* kSleeps = "sleeps on bell";
  const Options rollback = {.steps = 1, .rollback = true};
  const Options reentry = {.steps = 1, .rollback = true, .identities_differ_from = 1};
  const Options death = {.steps = 2, .mortal = 1};
  const Options three_members = {.members = 3, .steps = 1};
  static const std::vector<PlantedBug> bugs = {
      {"weak flag store", kWeakWord, kStuck, kSleeps},
      {"weak asleep store", kWeakAsleep, kStuck, kSleeps},
      {"no second check after asleep", kNoSecondCheck, kStuck, kSleeps},
      {"asleep cleared before futex_wait", kAsleepClearedBeforeWait, kStuck, kSleeps},
      {"bell rung before the flag", kBellBeforeFlag, kStuck, kSleeps},
      {"bell loaded after the check", kBellLoadedAfterCheck, kStuck, kSleeps},
      {"phase without a bell", kPhaseWithoutBell, kStuck, kSleeps, {.two_phase = true}},
      {"stop without a bell", kStopWithoutBell, kStuck, kSleeps, rollback},
      {"close without a bell", kCloseWithoutBell, kStuck, kSleeps, death},
      {"close: bell before the closing word", kCloseBellFirst, kStuck, kSleeps, death},
      {"leave without a bell", kLeaveWithoutBell, kStuck, kSleeps, {.leaver = 1}},
      {"submit without a bell", kSubmitWithoutBell, kStuck, kSleeps, {.late_submit = true}},
      {"weak store of who is awaited", kWeakAwaited, kStuck, kSleeps, three_members, true},
      {"no second check at who is awaited", kAwaitsWithoutSecondCheck, kStuck, kSleeps,
       three_members, true},
      {"one slot only", kOneSlot, kBroken, "wrong identity"},
      {"word before payload", kWordBeforePayload, kBroken, "wrong identity"},
      {"sequence and generation in two words", kSplitWord, kBroken, "wrong identity", {.steps = 3}},
      {"payload read per peer", kPayloadPerPeer, kBroken, "wrong sum", rollback, true},
      {"sequence restarted at a generation",
       kSequenceRestarted,
       kBroken,
       "wrong identity",
       {.steps = 2, .rollback = true}},
      {"naive common prefix", kNaivePrefix, kBroken, "completed was rolled back", rollback, true},
      {"report by the watch thread", kReportByWatch, kBroken, "", rollback, true},
      {"entering between report and answer", kEntersAfterReport, kBroken, "", rollback, true},
      {"an identity without its step number", kIdentityWithoutStepNumber, kBroken, "wrong sum",
       reentry, true},
  };
  return bugs;
}

TEST(Protocol, EveryPlantedBugIsFound) {
  for (const PlantedBug& planted : planted_bugs()) {
    Options options = planted.options;
    options.bug = planted.bug;
    Job job(options);
    const Finding finding = explore(scenario_of(job), {.depth_first = planted.depth_first});
    print({planted.name, options}, finding);
    EXPECT_EQ(finding.verdict, planted.verdict) << planted.name;
    EXPECT_THAT(finding.text, HasSubstr(planted.text)) << planted.name;
    EXPECT_FALSE(finding.trace.empty()) << planted.name;
  }
}

// Without the planted bugs, the explorer finds no error in the same jobs. So the test above finds
// the planted bugs and nothing else.
TEST(Protocol, EachJobHoldsWithoutItsPlantedBug) {
  for (const PlantedBug& planted : planted_bugs()) {
    // A job with a rollback has too many states for this test. WholeJob and LargeJob explore such
    // jobs.
    if (planted.options.rollback) continue;
    Job job(planted.options);
    EXPECT_EQ(explore(scenario_of(job), {}).verdict, Verdict::kHolds) << planted.name;
  }
}

}  // namespace
}  // namespace farandole::model
