// Tests the simulator itself: a seed always gives the same run, the jobs contain the intended
// situations, and the simulator notices planted bugs.
#include "simulation.h"

#include <gmock/gmock.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bugs.h"
#include "control/messages.h"

namespace farandole::sim {
namespace {

constexpr StoryOptions kLastLines{30};
constexpr StoryOptions kAllLines{1'000'000};

std::string story(const SimulationResult& result) {
  std::string text;
  for (const auto& line : result.lines) text += line + "\n";
  return text;
}

TEST(Simulation, TheSameSeedGivesTheSameStory) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const auto first = simulate({seed}, kAllLines);
    const auto second = simulate({seed}, kAllLines);
    ASSERT_EQ(first.digest, second.digest) << "seed " << seed;
    ASSERT_EQ(first.lines, second.lines) << "seed " << seed;
    ASSERT_NE(first.digest, simulate({seed + 1000}, kLastLines).digest);
  }
}

// How often each kind of item was sent, and how often each situation occurred.
struct Counts {
  int forgotten = 0;
  int in_full = 0;
  int by_id = 0;
  int again_after_joining = 0;
  int scales_rejected = 0;
  int rejected_as_joined = 0;
  int call_errors_rejected = 0;
  int releases = 0;
  int raises = 0;
  std::array<int, 3> causes = {};
  int reports_with_entry = 0;
  int reports_without_entry = 0;
  int answers_to_learn = 0;
  int answers_with_plan = 0;
  int buckets_of_several = 0;
  int fragments_dropped = 0;
  int edges = 0;
  int follows = 0;
  std::set<std::size_t> group_sizes;
};

// Counts the items that one member sends and receives.
struct Counter {
  Counts& counts;
  bool joined = false;

  void operator()(const auto& /*item*/) {}
  void operator()(const AnnounceInFull& /*item*/) { ++counts.in_full; }
  void operator()(const AnnounceById& /*item*/) { ++counts.by_id; }
  void operator()(const AnnounceAgain& /*item*/) { counts.again_after_joining += joined ? 1 : 0; }
  void operator()(const AnnounceJoin& /*item*/) { joined = true; }
  void operator()(const Raise& item) {
    ++counts.raises;
    ++counts.causes[static_cast<std::size_t>(item.cause)];
  }
  void operator()(const Report& item) {
    ++(item.entered == 0 ? counts.reports_without_entry : counts.reports_with_entry);
  }
  void operator()(const Define& /*item*/) {}
  void operator()(const Forget& /*item*/) { ++counts.forgotten; }
  void operator()(const Issue& /*item*/) {}
  void operator()(const Reject& item) {
    counts.scales_rejected += item.text.find("scale") != std::string::npos ? 1 : 0;
    counts.rejected_as_joined += item.text.find("cannot run: ") != std::string::npos ? 1 : 0;
    counts.call_errors_rejected += item.text.find("has call error") != std::string::npos ? 1 : 0;
  }
  void operator()(const ReleaseAll& /*item*/) {
    ++counts.releases;
    joined = false;
  }
  void operator()(const Stop& /*item*/) {}
  void operator()(const Answer& item) {
    ++(item.fragment == 0 ? counts.answers_to_learn : counts.answers_with_plan);
    joined = false;  // the answer of a replan cancels all earlier announcements
  }
  void operator()(const AddBucket& item) {
    counts.buckets_of_several += item.ids.size() > 1 ? 1 : 0;
  }
  void operator()(const DropFragment& /*item*/) { ++counts.fragments_dropped; }
  void operator()(const AddEdge& /*item*/) { ++counts.edges; }
  void operator()(const Follow& /*item*/) { ++counts.follows; }
};

// A tap that changes nothing. It counts the items on the wire.
Bug wire_counter(Counts& counts) {
  const auto tap = [&counts](const Script& script) -> Tap {
    for (const auto& members : script.groups) counts.group_sizes.insert(members.size());
    return [&counts, counters = std::map<std::pair<int, int>, Counter>()](
               Envelope envelope) mutable -> std::vector<Envelope> {
      const int follower = envelope.to == 0 ? envelope.from : envelope.to;
      auto& counter =
          counters.emplace(std::pair(envelope.group, follower), Counter{counts}).first->second;
      if (envelope.to == 0) {
        const auto items = decode_announcements(envelope.bytes).value().items;
        for (const auto& item : items) std::visit(counter, item);
      } else {
        const auto items = decode_stream(envelope.bytes).value();
        for (const auto& item : items) std::visit(counter, item);
      }
      return {std::move(envelope)};
    };
  };
  return {tap, {}};
}

TEST(Simulation, JobsContainTheIntendedSituations) {
  Counts counts;
  std::uint64_t rejections = 0;
  std::uint64_t releases = 0;
  std::uint64_t steps_joined = 0;
  int jobs_with_death = 0;
  int jobs_with_early_leave = 0;
  int jobs_that_must_fall_silent = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    const auto result = simulate({seed}, kLastLines, wire_counter(counts));
    ASSERT_FALSE(result.problem.has_value()) << *result.problem << "\n" << story(result);
    rejections += result.rejections;
    releases += result.releases;
    steps_joined += result.steps_joined;
    jobs_with_death += result.any_member_died ? 1 : 0;
    jobs_with_early_leave += result.any_member_left_early ? 1 : 0;
    jobs_that_must_fall_silent += result.must_fall_silent ? 1 : 0;
  }
  EXPECT_GT(counts.forgotten, 1000);
  EXPECT_GT(counts.in_full, 1000);
  EXPECT_GT(counts.by_id, 1000);
  EXPECT_GT(counts.again_after_joining, 3);
  EXPECT_GT(counts.scales_rejected, 100);
  EXPECT_GT(counts.rejected_as_joined, 1000);
  EXPECT_GT(counts.call_errors_rejected, 100);
  EXPECT_GT(counts.releases, 1000);
  EXPECT_GT(counts.raises, 1000);
  EXPECT_THAT(counts.causes, testing::Each(testing::Gt(20)));
  EXPECT_GT(counts.answers_to_learn, 1000);
  EXPECT_GT(counts.answers_with_plan, 100);
  EXPECT_GT(counts.buckets_of_several, 100);
  EXPECT_GT(counts.fragments_dropped, 50);
  EXPECT_GT(counts.edges, 1000);
  EXPECT_GT(counts.follows, 500);
  EXPECT_GT(jobs_that_must_fall_silent, 40);
  EXPECT_GT(counts.reports_with_entry, 1000);
  EXPECT_GT(counts.reports_without_entry, 200);
  EXPECT_GT(rejections, 1000U);
  EXPECT_GT(releases, 500U);
  EXPECT_GT(steps_joined, 500U);
  EXPECT_GT(jobs_with_death, 50);
  EXPECT_GT(jobs_with_early_leave, 30);
  EXPECT_EQ(*counts.group_sizes.begin(), 1U);
  EXPECT_GT(*counts.group_sizes.rbegin(), 60U);
}

TEST(Simulation, JobsOnSeveralHostsContainTheIntendedSituations) {
  MultiHostCounts counts;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const auto result = simulate({seed, ScriptKind::kHosts}, kLastLines);
    ASSERT_FALSE(result.problem.has_value()) << *result.problem << "\n" << story(result);
    ASSERT_EQ(result.digest, simulate({seed, ScriptKind::kHosts}, kLastLines).digest);
    counts += result.multi_host_counts;
  }
  EXPECT_GT(counts.partial_mispredictions, 50U);
  EXPECT_GT(counts.replans_with_entries, 20U);
  EXPECT_GT(counts.partitions_used, 100U);
  EXPECT_GT(counts.host_pauses, 50U);
  EXPECT_GT(counts.hosts_died, 20U);
  EXPECT_GT(counts.ends_received, 500U);
  EXPECT_GT(counts.ends_answered, 5U);
  EXPECT_GT(counts.steps_finished, 100U);
  EXPECT_GT(counts.steps_given_up, 20U);
}

class Planted : public testing::TestWithParam<NamedBug> {};

// Returns the problems that the simulation reports for a bug, other than the expected symptom. The
// set is empty if the simulation reports this symptom.
std::set<std::string> other_problems(const NamedBug& bug, std::uint64_t seeds_max) {
  std::set<std::string> problems;
  for (std::uint64_t seed = 1; seed <= seeds_max; ++seed) {
    const auto problem = simulate({seed, bug.kind}, kLastLines, bug.bug).problem;
    if (!problem) continue;
    if (problem->find(bug.symptom) != std::string::npos) return {};
    problems.insert(problem->substr(0, 200));
  }
  problems.insert("nothing else");
  return problems;
}

// A bug often shows in several ways; the expected symptom must be among them.
TEST_P(Planted, IsNoticed) {
  constexpr std::uint64_t kSeedsMax = 1000;
  if (GetParam().fails_check)
    EXPECT_DEATH(other_problems(GetParam(), kSeedsMax), GetParam().symptom);
  else
    EXPECT_THAT(other_problems(GetParam(), kSeedsMax), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Bugs, Planted, testing::ValuesIn(all_bugs()), [](const auto& instance) {
  auto name = instance.param.name;
  for (auto& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

}  // namespace
}  // namespace farandole::sim
