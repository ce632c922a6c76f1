#include "formation/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>

#include "formation/job_in_test.h"
#include "formation/process_context.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::KilledBySignal;

std::shared_ptr<Failpoint> failpoint_of(const std::string& text) {
  auto failpoint = Failpoint::parse(text);
  EXPECT_TRUE(failpoint.ok()) << failpoint.status().message();
  return *failpoint;
}

TEST(Failpoint, IsNullIfTheTextIsEmpty) { EXPECT_EQ(failpoint_of(""), nullptr); }

TEST(Failpoint, RejectsTextsWithoutValidPlaceActionAndNumber) {
  for (const std::string text :
       {"formation.attached", "formation.attached:kill", "formation.attached:kill:",
        "formation.attached:kill:0", "formation.attached:kill:-1", "formation.attached:kill:2x",
        "formation.attached:kill:2:3", "formation.attached:KILL:1", "formation.attached::1",
        "attached:kill:1", ":::", "formation.attached:kill:99999999999999999999"}) {
    const auto failpoint = Failpoint::parse(text);
    EXPECT_EQ(failpoint.status().code(), StatusCode::kFixCall) << text;
    EXPECT_THAT(failpoint.status().message(),
                HasSubstr("FARANDOLE_FAILPOINT is \"" + text +
                          "\"; it must be PLACE:ACTION:NUMBER, such as formation.attached:kill:2. "
                          "The place is one of engine.stopping, engine.stopped, "));
    EXPECT_THAT(failpoint.status().message(), HasSubstr("one of kill, stop, pause; the number"));
  }
}

TEST(Failpoint, ActsOnceAtTheChosenPass) {
  const auto failpoint = failpoint_of("rank.asked:pause:2");
  const auto seconds_of_pass = [&](Failpoint::Place place) {
    const auto begin = std::chrono::steady_clock::now();
    ::testing::internal::CaptureStderr();
    pass(failpoint, place);
    const std::string line = ::testing::internal::GetCapturedStderr();
    if (line.empty()) return 0.0;
    EXPECT_THAT(line, HasSubstr("is at the failpoint rank.asked: pause"));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_EQ(seconds_of_pass(Failpoint::Place::kRankAsked), 0.0);
  EXPECT_EQ(seconds_of_pass(Failpoint::Place::kRankGiven), 0.0);
  EXPECT_GE(seconds_of_pass(Failpoint::Place::kRankAsked), 0.1);
  EXPECT_EQ(seconds_of_pass(Failpoint::Place::kRankAsked), 0.0);
}

TEST(Failpoint, StopsTheProcessUntilItIsContinued) {
  const auto failpoint = failpoint_of("engine.stopped:stop:1");
  const pid_t child = ::fork();
  if (child == 0) {
    pass(failpoint, Failpoint::Place::kEngineStopped);
    ::_exit(42);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

// The tests of the engine and of elastic jobs check the other places.
TEST(Failpoint, ActsAtEachPlaceOfAFormation) {
  for (const std::string place :
       {"published", "shared", "attached", "counted", "completed", "departed"}) {
    const auto form_alone = [&] {
      const EngineOptions options = formation_options(0, 1);
      const JobOfHosts job({0});
      (void)form(
          {.options = options,
           .stores = {job.job_store(), job.store_of(0)},
           .make_heap = [](std::size_t bytes) { return make_process_context()->heap(bytes); },
           .failpoint = failpoint_of("formation." + place + ":kill:1")});
    };
    EXPECT_EXIT(form_alone(), KilledBySignal(SIGKILL), "failpoint formation." + place + ": kill");
  }
}

TEST(Failpoint, CountsThePassesOfAllEnginesOfAProcess) {
  ProcessContext context;
  const auto first = context.failpoint("rank.given:kill:3");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*context.failpoint("rank.given:kill:3"), *first);
  EXPECT_EQ(*context.failpoint(""), nullptr);
  EXPECT_EQ(context.failpoint("rank.given").status().code(), StatusCode::kFixCall);
  EXPECT_NE(*context.failpoint("rank.given:kill:3"), *first);
}

}  // namespace
}  // namespace farandole
