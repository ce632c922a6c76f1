// Tests of the simulator itself: that it repeats itself exactly, that its jobs meet what they are
// meant to meet, and that it notices bugs.
#include "simulation.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bugs.h"
#include "coordination/messages.h"

namespace farandole::sim {
namespace {

constexpr Telling kLastLines{30};
constexpr Telling kAllLines{1'000'000};

std::string story(const Report& report) {
  std::string text;
  for (const auto& line : report.lines) text += line + "\n";
  return text;
}

TEST(Simulation, TheSameSeedTellsTheSameStory) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const auto first = simulate(seed, kAllLines);
    const auto second = simulate(seed, kAllLines);
    ASSERT_EQ(first.number, second.number) << "seed " << seed;
    ASSERT_EQ(first.lines, second.lines) << "seed " << seed;
    ASSERT_NE(first.number, simulate(seed + 1000, kLastLines).number);
  }
}

struct Counts {
  int forgotten = 0;
  int in_full = 0;
  int by_id = 0;
  std::set<std::size_t> group_sizes;
};

Bug counter(Counts& counts) {
  const auto tap = [&counts](const Script& script) -> Tap {
    for (const auto& members : script.groups) counts.group_sizes.insert(members.size());
    return [&counts](Envelope envelope) -> std::vector<Envelope> {
      if (const auto announced = decode_announcements(envelope.bytes); announced.ok())
        for (const auto& item : *announced)
          ++(std::holds_alternative<AnnounceById>(item) ? counts.by_id : counts.in_full);
      if (const auto stream = decode_stream(envelope.bytes); stream.ok())
        for (const auto& item : *stream)
          if (std::holds_alternative<Forget>(item)) ++counts.forgotten;
      return {std::move(envelope)};
    };
  };
  return {tap, {}};
}

TEST(Simulation, JobsMeetWhatTheyAreMeantToMeet) {
  Counts counts;
  std::uint64_t refusals = 0;
  int deaths = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const auto report = simulate(seed, kLastLines, counter(counts));
    ASSERT_FALSE(report.problem.has_value()) << *report.problem << "\n" << story(report);
    refusals += report.refusals;
    deaths += report.somebody_died ? 1 : 0;
  }
  EXPECT_GT(counts.forgotten, 1000);
  EXPECT_GT(counts.in_full, 1000);
  EXPECT_GT(counts.by_id, 1000);
  EXPECT_GT(refusals, 100U);
  EXPECT_GT(deaths, 50);
  EXPECT_EQ(*counts.group_sizes.begin(), 1U);
  EXPECT_GT(*counts.group_sizes.rbegin(), 60U);
}

class Planted : public testing::TestWithParam<NamedBug> {};

// A bug often shows in several ways; one of them must be the one that we name.
TEST_P(Planted, IsNoticed) {
  constexpr std::uint64_t kSeedsMax = 300;
  std::set<std::string> problems;
  for (std::uint64_t seed = 1; seed <= kSeedsMax; ++seed) {
    const auto problem = simulate(seed, kLastLines, GetParam().bug).problem;
    if (!problem) continue;
    if (problem->find(GetParam().symptom) != std::string::npos) return;
    problems.insert(problem->substr(0, 200));
  }
  FAIL() << "not noticed in " << kSeedsMax << " jobs: " << GetParam().name
         << ". Only this was: " << testing::PrintToString(problems);
}

INSTANTIATE_TEST_SUITE_P(Bugs, Planted, testing::ValuesIn(all_bugs()), [](const auto& instance) {
  auto name = instance.param.name;
  for (auto& c : name)
    if (c == ' ') c = '_';
  return name;
});

}  // namespace
}  // namespace farandole::sim
