#include "probe/examination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/sibling_program.h"
#include "probe/verdict.h"
#include "remote/ssh_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The hosts are named by address, so no name is looked up. The second and the third address belong
// to no host. A script in place of ssh starts the probes for these two addresses on this host.
constexpr const char* kHere = "127.0.0.1";
constexpr const char* kOwl = "198.51.100.1";
constexpr const char* kJay = "203.0.113.2";

class ExaminationTest : public ::testing::Test {
 protected:
  static ExaminationPlan plan_for(const std::vector<std::string>& hosts) {
    ExaminationPlan plan;
    for (const std::string& host : hosts) plan.hosts.push_back({.name = host, .user = ""});
    plan.program = find_sibling_program("probe_in_test");
    plan.settings = {"FARANDOLE_NETWORK_INTERFACES=lo"};
    plan.start_timeout = std::chrono::seconds(60);
    return plan;
  }

  static std::vector<HostReport> examine(const ExaminationPlan& plan) {
    auto survey = examine_hosts(plan);
    EXPECT_TRUE(survey.ok()) << survey.status().message();
    return std::move(survey->hosts);
  }

  // Examines this host and another one, and returns the report of the other one.
  static HostReport report_of_owl(const ExaminationPlan& plan = plan_for({kHere, kOwl})) {
    auto reports = examine(plan);
    EXPECT_EQ(reports.at(0).start_error, "");
    EXPECT_TRUE(reports.at(0).facts.has_value());
    EXPECT_TRUE(reports.at(0).attempts.empty());  // one host alone has no other host to try
    return std::move(reports.at(1));
  }

  SshInTest ssh_;
};

TEST_F(ExaminationTest, EachHostReachesTheOther) {
  const auto survey = examine_hosts(plan_for({kHere, kOwl}));
  ASSERT_TRUE(survey.ok());
  ASSERT_EQ(survey->hosts.size(), 2U);
  for (std::uint32_t number = 0; number < 2; ++number) {
    const HostReport& host = survey->hosts[number];
    EXPECT_EQ(host.name, number == 0 ? kHere : kOwl);
    EXPECT_EQ(host.start_error, "");
    ASSERT_TRUE(host.facts.has_value());
    EXPECT_EQ(host.facts->version, "1.2.3");
    EXPECT_GE(host.facts->cores, 1);
    EXPECT_GT(host.facts->memory_bytes, 0);
    ASSERT_FALSE(host.facts->addresses.empty()) << host.facts->listen_error;
    EXPECT_EQ(host.facts->addresses[0].interface, "lo");
    EXPECT_EQ(host.lookups.size(), 2U);
    for (const NameLookup& lookup : host.lookups) EXPECT_EQ(lookup.error, "");
    ASSERT_TRUE(host.clock.has_value());
    EXPECT_LE(std::abs(host.clock->offset_seconds), host.clock->error_seconds + 1);
    ASSERT_FALSE(host.attempts.empty());
    for (const Attempt& attempt : host.attempts) {
      EXPECT_EQ(attempt.to, 1 - number);
      EXPECT_EQ(attempt.failure, ConnectFailure::kNone) << attempt.error;
      EXPECT_GT(attempt.round_trip_seconds, 0);
      EXPECT_GT(attempt.bytes_per_second, 0);
    }
  }
  EXPECT_TRUE(std::ranges::none_of(problems_of(*survey), &Problem::is_fatal));
}

TEST_F(ExaminationTest, HostsThatCannotBeReachedHaveTheReason) {
  ssh_.fail(kOwl, "ssh: connect to host owl port 22: Connection refused");
  ssh_.set_host_script(kJay, "exit 255");
  const auto reports = examine(plan_for({kOwl, kHere, kJay}));
  EXPECT_EQ(reports.at(0).start_error, "ssh: connect to host owl port 22: Connection refused");
  EXPECT_THAT(reports[0].start_advice, HasSubstr("--ssh-port"));
  EXPECT_FALSE(reports[0].facts.has_value());
  EXPECT_EQ(reports.at(1).start_error, "");
  EXPECT_TRUE(reports[1].facts.has_value());
  EXPECT_EQ(reports.at(2).start_error, "`ssh` has exited with code 255 without a message");
  EXPECT_EQ(reports[2].start_advice, "try `ssh -- 203.0.113.2 true`");
}

TEST_F(ExaminationTest, ASilentHostIsGivenUp) {
  const std::string was_ended = ssh_.folder() + "/was_ended";
  ssh_.set_host_script(kOwl, "trap 'touch " + was_ended + "; exit 0' TERM\n" +
                                 "echo 'a question?'; while :; do sleep 0.01; done");
  ExaminationPlan plan = plan_for({kHere, kOwl});
  plan.start_timeout = std::chrono::seconds(5);
  const HostReport owl = report_of_owl(plan);
  EXPECT_EQ(owl.start_error, "a question?; there is no answer after 5 s (FARANDOLE_START_TIMEOUT)");
  EXPECT_EQ(owl.start_advice, "try `ssh -- 198.51.100.1 true`");
  EXPECT_TRUE(std::filesystem::exists(was_ended));
}

TEST_F(ExaminationTest, AVersionWithoutProbesIsReported) {
  ssh_.set_host_script(kOwl, "echo 'farandole: there is no command `probe`' >&2; exit 2");
  const HostReport owl = report_of_owl();
  EXPECT_EQ(owl.start_error, "farandole: there is no command `probe`");
  EXPECT_EQ(owl.start_advice, "install the same version of Farandole on all hosts");
}

TEST_F(ExaminationTest, AProbeThatEndsIsReportedWithItsError) {
  ssh_.set_host_script(kOwl,
                       "for s in 1 2; do echo farandole probe 1.2.3 >&$s; done\n"
                       "echo 'no memory' >&2; exit 1");
  EXPECT_EQ(report_of_owl().start_error, "no memory");
}

TEST_F(ExaminationTest, AProbeWithoutFactsIsOfAnotherVersion) {
  ssh_.set_host_script(
      kOwl,
      "echo farandole probe 9.9\n"
      "for i in 1 2 3; do echo '{\"lookup\": {\"name\": \"a\"}}'; echo nonsense; done\n"
      "exec cat >/dev/null");
  const HostReport owl = report_of_owl();
  EXPECT_EQ(owl.start_error, "its probe has said nothing about the host");
  EXPECT_EQ(owl.start_advice, "install the same version of Farandole on all hosts");
}

TEST_F(ExaminationTest, AMissingProgramIsReported) {
  ExaminationPlan plan = plan_for({kHere});
  plan.program = "/does/not/exist";
  EXPECT_THAT(examine(plan).at(0).start_error, HasSubstr("/does/not/exist"));
}

TEST_F(ExaminationTest, WrongSettingsReachTheProbes) {
  ExaminationPlan plan = plan_for({kHere, kOwl});
  plan.settings = {"FARANDOLE_PORTS=many"};
  for (const HostReport& host : examine(plan)) {
    EXPECT_EQ(host.start_error, "");
    ASSERT_TRUE(host.facts.has_value());
    EXPECT_THAT(host.facts->listen_error, HasSubstr("many"));
    EXPECT_TRUE(host.facts->addresses.empty());
    EXPECT_TRUE(host.attempts.empty());
  }
}

TEST_F(ExaminationTest, TheProgressIsShownOnOneLine) {
  ExaminationPlan plan = plan_for({kHere});
  plan.shows_progress = true;
  ::testing::internal::CaptureStderr();
  (void)examine(plan);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, StartsWith("\r\x1b[K0 of 1 hosts have answered"));
  EXPECT_THAT(shown, HasSubstr("\r\x1b[K1 of 1 hosts have answered"));
  EXPECT_TRUE(shown.ends_with("\r\x1b[K"));
}

}  // namespace
}  // namespace farandole
