// sim: runs simulated jobs. Without arguments the number of seeds that CI runs.
//   --seeds N  [--first S]  N seeds, from S on
//   --seed S                one seed, with its whole story
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "simulation.h"

namespace farandole::sim {
namespace {

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t seeds = SIM_SEEDS;
  bool tells_all = false;
};

std::optional<Arguments> parse(std::span<char* const> words) {
  Arguments arguments;
  for (std::size_t index = 0; index < words.size(); index += 2) {
    if (index + 1 == words.size()) return std::nullopt;
    const std::string_view flag = words[index];
    const std::string_view text = words[index + 1];
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
    if (error != std::errc() || end != text.end()) return std::nullopt;
    if (flag == "--seeds") {
      arguments.seeds = number;
    } else if (flag == "--first") {
      arguments.first = number;
    } else if (flag == "--seed") {
      arguments = {.first = number, .seeds = 1, .tells_all = true};
    } else {
      return std::nullopt;
    }
  }
  return arguments;
}

// What to say when a CHECK stops the program in the middle of a job.
std::array<char, 100> last_words;

void remember(std::uint64_t seed) {
  const auto written = fmt::format_to_n(last_words.begin(), last_words.size() - 1,
                                        "repeat it with: ./dev sim --seed {}\n", seed);
  *written.out = '\0';
}

// abort() comes from this very thread, never in the middle of a write.
void say_last_words(int /*signal*/) {
  std::fflush(stdout);
  std::fputs(last_words.data(), stderr);
}

int run(const Arguments& arguments) {
  constexpr Telling kLastLines{60};
  constexpr Telling kAloud{1, true};
  std::uint64_t number = 0;
  std::uint64_t steps = 0;
  std::uint64_t steps_joined = 0;
  std::uint64_t refusals = 0;
  std::uint64_t releases = 0;
  std::uint64_t messages = 0;
  std::uint64_t deaths = 0;
  for (std::uint64_t seed = arguments.first; seed - arguments.first < arguments.seeds; ++seed) {
    remember(seed);
    const auto report = simulate(seed, arguments.tells_all ? kAloud : kLastLines);
    if (report.problem && !arguments.tells_all) fmt::print("{}\n", fmt::join(report.lines, "\n"));
    if (report.problem) {
      fmt::print("FAILED: {}\nrepeat it with: ./dev sim --seed {}\n", *report.problem, seed);
      return 1;
    }
    number = number * 0x100000001b3U ^ report.number;
    steps += report.steps;
    steps_joined += report.steps_joined;
    refusals += report.refusals;
    releases += report.releases;
    messages += report.messages;
    deaths += report.somebody_died ? 1U : 0U;
  }
  fmt::print(
      "{} seeds from {}: {} steps ({} joined), {} refusals, {} releases, {} messages, {} jobs with "
      "a death; all is well (stories {:016x})\n",
      arguments.seeds, arguments.first, steps, steps_joined, refusals, releases, messages, deaths,
      number);
  return 0;
}

}  // namespace
}  // namespace farandole::sim

int main(int count, char** words) {
  const auto arguments =
      farandole::sim::parse({words + 1, static_cast<std::size_t>(count > 0 ? count - 1 : 0)});
  if (!arguments) {
    fmt::print(stderr, "usage: {} [--seed S | --seeds N [--first S]]\n", words[0]);
    return 2;
  }
  std::signal(SIGABRT, farandole::sim::say_last_words);
  return farandole::sim::run(*arguments);
}
