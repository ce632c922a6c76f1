// Explores the progress lock. The threads are callers, a claim, the thread "progress" and stop().
// In every order of their operations, at most one thread holds the lock, claims go first, no thread
// sleeps while a call can be finished, and everything ends. Every planted bug is found.
#include <gmock/gmock.h>

#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "explorer.h"
#include "progress_threads_model.h"

namespace farandole::model {
namespace {

using testing::HasSubstr;
using enum CallerKind;
using PeerWait = ProgressOptions::PeerWait;

Finding explore_progress(const std::string& name, const ProgressOptions& options,
                         const Limits& limits = {}) {
  ProgressJob job(options);
  Finding finding = explore(scenario_of(job), limits);
  std::cout << name << ": " << name_of(finding.verdict)
            << (finding.text.empty() ? "" : ": " + finding.text) << " (" << finding.states
            << " states, " << finding.transitions << " moves)\n";
  return finding;
}

struct Case {
  const char* name;
  ProgressOptions options;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> cases = {
      {"OneWaits", {.callers = {kSubmitsAndWaits}}},
      {"OneWaitsStopped", {.callers = {kSubmitsAndWaits}, .stops_at_any_time = true}},
      {"OneWaitsForTheEnd",
       {.callers = {kSubmitsAndWaits},
        .stops_at_any_time = true,
        .peer_waits_for = PeerWait::kEnd}},
      {"OneWaitsClaimed",
       {.callers = {kSubmitsAndWaits}, .claim = true, .peer_waits_for = PeerWait::kClaim}},
      {"OnePolls", {.callers = {kSubmitsAndPolls}}},
      {"OnePollsStopped",
       {.callers = {kSubmitsAndPolls}, .claim = true, .stops_at_any_time = true}},
      {"OneWaitsLater", {.callers = {kSubmitsThenWaits}, .claim = true}},
      {"TwoWait",
       {.callers = {kSubmitsAndWaits, kSubmitsAndWaits}, .peer_waits_for = PeerWait::kOtherCalls}},
      {"TwoWaitClaimed", {.callers = {kSubmitsAndWaits, kSubmitsAndWaits}, .claim = true}},
      {"WaitAndPoll",
       {.callers = {kSubmitsAndWaits, kSubmitsAndPolls}, .peer_waits_for = PeerWait::kOtherCalls}},
      {"OneTimesOut", {.callers = {kTimesOut}, .claim = true}},
      {"ThreeWait",
       {.callers = {kSubmitsAndWaits, kSubmitsAndWaits, kSubmitsAndWaits},
        .peer_waits_for = PeerWait::kOtherCalls}},
      {"WaitAndWaitLater", {.callers = {kSubmitsAndWaits, kSubmitsThenWaits}}},
  };
  return cases;
}

class ProgressCase : public testing::TestWithParam<Case> {};

TEST_P(ProgressCase, Holds) {
  const Finding finding =
      explore_progress(GetParam().name, GetParam().options, {.end_must_be_reachable = true});
  EXPECT_EQ(finding.verdict, Verdict::kHolds) << finding.text << "\n" << finding.trace;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(ProgressLock, ProgressCase, testing::ValuesIn(cases()), case_name);

struct PlantedBug {
  const char* name;
  ProgressBug bug;
  ProgressOptions options;
  Verdict verdict;
  std::string_view text;  // a part of the finding's text
};

const std::vector<PlantedBug>& planted_bugs() {
  using enum ProgressBug;
  constexpr auto kStuck = Verdict::kDeadlock;
  constexpr auto kBroken = Verdict::kViolation;
  const ProgressOptions one_polls = {.callers = {kSubmitsAndPolls}};
  const ProgressOptions one_waits = {.callers = {kSubmitsAndWaits}};
  const ProgressOptions two_wait = {.callers = {kSubmitsAndWaits, kSubmitsAndWaits},
                                    .peer_waits_for = PeerWait::kOtherCalls};
  const ProgressOptions wait_and_poll = {.callers = {kSubmitsAndWaits, kSubmitsAndPolls},
                                         .peer_waits_for = PeerWait::kOtherCalls};
  const ProgressOptions poll_and_wait = {.callers = {kSubmitsAndPolls, kSubmitsAndWaits},
                                         .peer_waits_for = PeerWait::kOtherCalls};
  const ProgressOptions claimed = {
      .callers = {kSubmitsAndWaits}, .claim = true, .peer_waits_for = PeerWait::kClaim};
  const ProgressOptions claimed_late = {.callers = {kSubmitsThenWaits}, .claim = true};
  const ProgressOptions stopped = {
      .callers = {kSubmitsAndWaits}, .stops_at_any_time = true, .peer_waits_for = PeerWait::kEnd};
  const ProgressOptions waits_late = {.callers = {kSubmitsThenWaits}};
  const ProgressOptions two_poll = {.callers = {kSubmitsAndPolls, kSubmitsAndPolls}};
  static const std::vector<PlantedBug> bugs = {
      {"release wakes nobody", kReleaseWakesNobody, one_polls, kStuck, ""},
      {"release wakes nobody, claim", kReleaseWakesNobody, claimed, kStuck, ""},
      {"release_as_waiter wakes nobody", kReleaseAsWaiterWakesNobody, claimed, kStuck,
       "claim awaits"},
      {"the end of a wait wakes nobody", kEndOfWaitWakesNobody, poll_and_wait, kStuck, ""},
      {"the end of a call wakes nobody", kFinishWakesNobody, two_wait, kStuck, ""},
      {"a waiter stays counted", kWaiterStaysCounted, poll_and_wait, kStuck, ""},
      {"a nap stays noted", kNapStaysRecorded, two_poll, kStuck, ""},
      {"takes a lock that is held", kTakesHeldLock, two_wait, kBroken, "two hold"},
      {"takes it before a claim", kTakesBeforeClaims, claimed_late, kBroken, "passed over"},
      {"the thread goes before a caller", kProgressTakesBeforeCallers, waits_late, kBroken,
       "before a caller"},
      {"the holder ignores a claim", kHolderIgnoresClaims, claimed, kStuck, "claim awaits"},
      {"the holder ignores the end", kHolderIgnoresStop, stopped, kStuck,
       "caller 0 sleeps on bell"},
      {"wakes before it releases", kWakesBeforeRelease, one_polls, kStuck, ""},
      {"submits without a bell", kSubmitWithoutBell, wait_and_poll, kStuck, ""},
      {"claims without a bell", kClaimWithoutBell, claimed, kStuck, "claim awaits"},
      {"the end wakes nobody", kStopWakesNobody, one_waits, kStuck, "progress"},
      {"sleeps though it must release", kSleepsThoughItMustRelease, claimed, kStuck,
       "claim awaits"},
  };
  return bugs;
}

TEST(ProgressLock, EveryPlantedBugIsFound) {
  for (const PlantedBug& planted : planted_bugs()) {
    ProgressOptions options = planted.options;
    options.bug = planted.bug;
    const Finding finding = explore_progress(planted.name, options);
    EXPECT_EQ(finding.verdict, planted.verdict) << planted.name;
    EXPECT_THAT(finding.text, HasSubstr(std::string(planted.text))) << planted.name;
  }
}

// Without the planted bugs, the explorer finds no error in the same jobs. So the test above finds
// the planted bugs and nothing else.
TEST(ProgressLock, EachJobHoldsWithoutItsPlantedBug) {
  for (const PlantedBug& planted : planted_bugs()) {
    EXPECT_EQ(explore_progress(planted.name, planted.options).verdict, Verdict::kHolds)
        << planted.name;
  }
}

}  // namespace
}  // namespace farandole::model
