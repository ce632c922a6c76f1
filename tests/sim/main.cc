// sim: runs simulated jobs. Without arguments, it runs as many seeds as CI does.
//   --seeds N [--first S]        N seeds, beginning with S
//   --seed S                     one seed; prints every event of it
//   --kind any|free|loop|large|names|hosts   the kind of jobs; combines with the options above
//   --workloads [--seeds N]      the cost of typical training programs, summed over N seeds
//   --scale [--members N]        measures the cost of agreement with up to N members

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "base/format.h"
#include "scale.h"
#include "simulation.h"
#include "workloads.h"

namespace farandole::sim {
namespace {

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t seeds = SIM_SEEDS;
  ScriptKind kind = ScriptKind::kAny;
  bool prints_events = false;
  bool scale = false;
  bool workloads = false;
  int members_max = 8192;
};

constexpr std::array<std::string_view, 6> kKinds = {"any",   "free",  "loop",
                                                    "large", "names", "hosts"};

std::optional<int> kind_number(std::string_view kind) {
  const auto* const found = std::ranges::find(kKinds, kind);
  if (found == kKinds.end()) return std::nullopt;
  return static_cast<int>(found - kKinds.begin());
}

bool take_option(Arguments& arguments, std::string_view flag, std::string_view text) {
  if (flag == "--kind") {
    const auto kind = kind_number(text);
    if (kind) arguments.kind = static_cast<ScriptKind>(*kind);
    return kind.has_value();
  }
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (flag == "--seeds") {
    arguments.seeds = number;
  } else if (flag == "--first") {
    arguments.first = number;
  } else if (flag == "--seed") {
    arguments.first = number;
    arguments.seeds = 1;
    arguments.prints_events = true;
  } else if (flag == "--members") {
    arguments.members_max = static_cast<int>(std::min<std::uint64_t>(number, 8192));
  } else {
    return false;
  }
  return true;
}

std::optional<Arguments> parse(std::span<char* const> argv) {
  Arguments arguments;
  for (std::size_t index = 0; index < argv.size(); ++index) {
    const std::string_view flag = argv[index];
    if (flag == "--scale") {
      arguments.scale = true;
    } else if (flag == "--workloads") {
      arguments.workloads = true;
      arguments.seeds = 2;  // the number in docs/simulator.md; a later --seeds replaces this number
    } else if (++index == argv.size() || !take_option(arguments, flag, argv[index])) {
      return std::nullopt;
    }
  }
  return arguments;
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// The text to print if a CHECK stops the program in the middle of a job.
std::array<char, 100> abort_message;

void set_abort_message(std::uint64_t seed, ScriptKind kind) {
  const auto name = kKinds.at(static_cast<std::size_t>(kind));
  const auto text =
      format_text("repeat it with: ./dev sim --seed {}{}{}\n", seed,
                  kind == ScriptKind::kAny ? "" : " --kind ", kind == ScriptKind::kAny ? "" : name);
  abort_message = {};
  text.copy(abort_message.data(), abort_message.size() - 1);
}

// This signal handler may use stdio: only this thread calls abort(), and never while it is in
// stdio.
void print_abort_message(int /*signal*/) {
  std::fflush(stdout);
  std::fputs(abort_message.data(), stderr);
}

// The sums over many simulations.
struct Totals {
  std::uint64_t digest = 0;
  SimulationResult sums;
  std::uint64_t jobs_with_death = 0;
  std::uint64_t jobs_with_early_leave = 0;
  std::uint64_t jobs_that_must_fall_silent = 0;
  std::uint64_t jobs_that_fell_silent = 0;

  void add(const SimulationResult& result) {
    digest = digest * 0x100000001b3U ^ result.digest;
    sums.steps += result.steps;
    sums.steps_joined += result.steps_joined;
    sums.steps_fused += result.steps_fused;
    sums.rejections += result.rejections;
    sums.releases += result.releases;
    sums.rollbacks += result.rollbacks;
    sums.messages += result.messages;
    sums.multi_host_counts += result.multi_host_counts;
    jobs_with_death += result.any_member_died ? 1U : 0U;
    jobs_with_early_leave += result.any_member_left_early ? 1U : 0U;
    jobs_that_must_fall_silent += result.must_fall_silent ? 1U : 0U;
    jobs_that_fell_silent += result.fell_silent ? 1U : 0U;
  }
};

std::string multi_host_text(const MultiHostCounts& counts) {
  return format_text(
      "on several hosts: {} mispredictions seen by some hosts only, {} replans with entries on "
      "their way, {} partitions, {} pauses of a host, {} deaths of a whole host, {} ends of groups "
      "heard "
      "from other hosts ({} answered, {} frames), after which {} steps were finished and {} given "
      "up\n",
      counts.partial_mispredictions, counts.replans_with_entries, counts.partitions_used,
      counts.host_pauses, counts.hosts_died, counts.ends_received, counts.ends_answered,
      counts.ends_sent, counts.steps_finished, counts.steps_given_up);
}

int run(const Arguments& arguments) {
  constexpr StoryOptions kLastLines{60};
  constexpr StoryOptions kPrintsAtOnce{1, true};
  Totals totals;
  for (std::uint64_t seed = arguments.first; seed - arguments.first < arguments.seeds; ++seed) {
    set_abort_message(seed, arguments.kind);
    const auto result =
        simulate({seed, arguments.kind}, arguments.prints_events ? kPrintsAtOnce : kLastLines);
    if (result.problem) {
      if (!arguments.prints_events) print(join_text(result.lines, "\n") + "\n");
      print(format_text("FAILED: {}\n{}", *result.problem, abort_message.data()));
      return 1;
    }
    totals.add(result);
  }
  const auto& sums = totals.sums;
  print(format_text(
      "{} seeds from {}: {} steps ({} joined, {} fused), {} rejections, {} releases, {} rollbacks, "
      "{} messages; {} jobs with a death, {} with an early leave, {} that fell silent ({} had to); "
      "all is well (stories {:016x})\n",
      arguments.seeds, arguments.first, sums.steps, sums.steps_joined, sums.steps_fused,
      sums.rejections, sums.releases, sums.rollbacks, sums.messages, totals.jobs_with_death,
      totals.jobs_with_early_leave, totals.jobs_that_fell_silent, totals.jobs_that_must_fall_silent,
      totals.digest));
  if (arguments.kind == ScriptKind::kHosts) print(multi_host_text(sums.multi_host_counts));
  return 0;
}

}  // namespace
}  // namespace farandole::sim

int main(int count, char** argv) {
  const auto arguments =
      farandole::sim::parse({argv + 1, static_cast<std::size_t>(count > 0 ? count - 1 : 0)});
  if (!arguments) {
    std::fprintf(stderr,
                 "usage: %s [--seed S | --seeds N [--first S]]\n"
                 "           [--kind any|free|loop|large|names|hosts]\n"
                 "       %s --workloads [--seeds N]\n"
                 "       %s --scale [--members N]\n",
                 argv[0], argv[0], argv[0]);
    return 2;
  }
  if (arguments->scale) {
    farandole::sim::print(farandole::sim::scale_report(arguments->members_max));
    return 0;
  }
  if (arguments->workloads) {
    farandole::sim::print(farandole::sim::workload_report(arguments->seeds));
    return 0;
  }
  std::signal(SIGABRT, farandole::sim::print_abort_message);
  return farandole::sim::run(*arguments);
}
