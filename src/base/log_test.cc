#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <vector>

#include "base/knobs.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Returns what the function writes to standard error.
template <class Function>
std::string printed_by(Function function) {
  ::testing::internal::CaptureStderr();
  function();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, shows_tag_level_and_text) {
  const std::string printed = printed_by([] {
    const Log log({.hide_time = true, .tag = "rank 3"});
    log(Level::kError, "no {} format % here");
  });
  EXPECT_EQ(printed, "farandole rank 3 error: no {} format % here\n");
}

TEST(Log, shows_the_time_unless_told_not_to) {
  const std::string printed = printed_by([] { Log({})(Level::kWarning, "late"); });
  EXPECT_THAT(printed, MatchesRegex("[0-9]+-[0-9]+-[0-9]+ [0-9:.]+ farandole warning: late\n"));
}

TEST(Log, drops_lines_below_its_level) {
  const std::string printed = printed_by([] {
    const Log log({.level = Level::kInfo, .hide_time = true});
    log(Level::kTrace, "trace");
    log(Level::kDebug, "debug");
    log(Level::kInfo, "information");
    log(Level::kFatal, "the end");
  });
  EXPECT_EQ(printed, "farandole info: information\nfarandole fatal: the end\n");
}

TEST(Log, levels_have_the_names_that_the_knob_allows) {
  const std::string choices(knob_named("FARANDOLE_LOG_LEVEL").choices);
  std::istringstream words(choices);
  int count = 0;
  for (std::string word; std::getline(words, word, '|'); ++count)
    EXPECT_EQ(static_cast<int>(*level_named(word)), count) << word;
  EXPECT_EQ(count, 6);
  const auto unknown = level_named("loud");
  EXPECT_EQ(unknown.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(unknown.status().message(), HasSubstr("`loud`"));
}

TEST(Log, lines_of_many_threads_stay_whole) {
  const std::string printed = printed_by([] {
    const Log log({.hide_time = true});
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&log] {
        for (int line = 0; line < 100; ++line) log(Level::kError, "a whole line");
      });
  });
  std::istringstream lines(printed);
  std::string line;
  int count = 0;
  for (; std::getline(lines, line); ++count) EXPECT_EQ(line, "farandole error: a whole line");
  EXPECT_EQ(count, 400);
}

}  // namespace
}  // namespace farandole
