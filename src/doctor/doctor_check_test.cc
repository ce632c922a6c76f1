#include "doctor/doctor_check.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

Check check_of(std::function<std::vector<Finding>()> run) {
  return {.names = {"first", "second"}, .essential = true, .run = std::move(run)};
}

void expect_same_for_all(const std::vector<Finding>& findings, const std::string& found,
                         const std::string& advice = "") {
  ASSERT_EQ(findings.size(), 2U);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.health, Health::kDoesNotWork);
    EXPECT_EQ(finding.found, found);
    EXPECT_EQ(finding.advice, advice);
  }
}

TEST(DoctorCheck, FindingsArriveUnchanged) {
  const std::string long_text(100'000, 'x');  // longer than what a pipe holds
  const auto findings = findings_of(check_of([&] {
    return std::vector<Finding>{{Health::kLimited, "two\nlines", "raise it", "1.2"},
                                {Health::kNotInstalled, long_text, "", ""}};
  }));
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].health, Health::kLimited);
  EXPECT_EQ(findings[0].found, "two\nlines");
  EXPECT_EQ(findings[0].advice, "raise it");
  EXPECT_EQ(findings[0].version, "1.2");
  EXPECT_EQ(findings[1].health, Health::kNotInstalled);
  EXPECT_EQ(findings[1].found, long_text);
  EXPECT_EQ(findings[1].advice, "");
}

TEST(DoctorCheck, ASingleCheckHasOneFinding) {
  const Check check =
      single_check("cores", false, [] { return Finding{Health::kWorks, "4 of 4 usable", ""}; });
  EXPECT_EQ(check.names, std::vector<std::string>{"cores"});
  EXPECT_FALSE(check.essential);
  EXPECT_EQ(findings_of(check).at(0).found, "4 of 4 usable");
}

TEST(DoctorCheck, ACheckThatCrashesIsReported) {
  expect_same_for_all(findings_of(check_of([]() -> std::vector<Finding> {
                        ::raise(SIGKILL);
                        return {};
                      })),
                      "the check crashed: SIGKILL");
}

// As in a job, a call beyond the limit fails, and SIGXFSZ does not end the process.
TEST(DoctorCheck, AFileSizeLimitIsReportedAsAFailedCall) {
  const auto findings = findings_of(single_check("small", false, [] {
    const rlimit limit{0, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const int memory = ::memfd_create("farandole-test", MFD_CLOEXEC);
    const bool fails = ::ftruncate(memory, 4096) != 0 && errno == EFBIG;
    return Finding{Health::kWorks, fails ? "too large" : "fits", ""};
  }));
  EXPECT_EQ(findings.at(0).found, "too large");
}

TEST(DoctorCheck, ACheckThatEndsWithoutAllFindingsIsReported) {
  expect_same_for_all(findings_of(check_of([]() -> std::vector<Finding> { ::_exit(0); })),
                      "the check ended without an answer");
  expect_same_for_all(
      findings_of(check_of([] { return std::vector<Finding>{{Health::kWorks, "only one", ""}}; })),
      "the check ended without an answer");
}

TEST(DoctorCheck, ACheckThatHangsIsEnded) {
  expect_same_for_all(findings_of(check_of([]() -> std::vector<Finding> {
                        for (;;) ::pause();
                      })),
                      "no answer within 10 s");
}

TEST(DoctorCheck, ACheckDoesNotDisturbOurOutput) {
  ::testing::internal::CaptureStdout();
  const auto findings = findings_of(check_of([] {
    ::dprintf(STDOUT_FILENO, "noise");
    char byte = 0;
    const bool is_empty = ::read(STDIN_FILENO, &byte, 1) == 0;
    return std::vector<Finding>(2, {Health::kWorks, is_empty ? "no input" : "input", ""});
  }));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(findings.at(0).found, "no input");
}

TEST(DoctorCheck, WithoutFreeDescriptorsNoCheckRuns) {
  const Check check = check_of([] { return std::vector<Finding>(2); });
  const NoFreeDescriptors no_free_descriptors;
  expect_same_for_all(findings_of(check), "cannot be tried: pipe2: Too many open files",
                      "look at `ulimit -u` and `ulimit -n`");
}

}  // namespace
}  // namespace farandole
