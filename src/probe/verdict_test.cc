#include "probe/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "probe/survey_in_test.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

auto fatal(const std::string& found, const std::string& advice) {
  return AllOf(Field(&Problem::is_fatal, true), Field(&Problem::found, HasSubstr(found)),
               Field(&Problem::advice, HasSubstr(advice)));
}

auto limited(const std::string& found, const std::string& advice) {
  return AllOf(Field(&Problem::is_fatal, false), Field(&Problem::found, HasSubstr(found)),
               Field(&Problem::advice, HasSubstr(advice)));
}

TEST(Verdict, GoodHostsHaveNoProblems) {
  for (const std::size_t hosts : {1U, 2U, 20U})
    EXPECT_THAT(problems_of(survey_of(hosts)), IsEmpty()) << hosts;
}

TEST(Verdict, AHostThatCannotBeStartedIsFatal) {
  Survey survey = survey_of(2);
  survey.hosts[1] = {
      .name = "h1", .start_error = "Permission denied", .start_advice = "give a key"};
  survey.hosts[0].attempts.clear();
  EXPECT_THAT(problems_of(survey), ElementsAre(fatal("h1: Permission denied", "give a key")));
}

TEST(Verdict, AHostThatCannotListenIsFatal) {
  Survey survey = survey_of(2);
  survey.hosts[1].facts->addresses.clear();
  survey.hosts[1].facts->listen_error = "no port of 1-2 is free";
  survey.hosts[0].attempts.clear();
  EXPECT_THAT(problems_of(survey),
              ElementsAre(fatal("h1 cannot be reached: no port of 1-2 is free", "")));
}

TEST(Verdict, ABlockedHostIsReportedWithItsPortAndTheHostsThatTriedIt) {
  Survey survey = survey_of(3);
  for (const int interface : {0, 1})
    fail_for_all(survey, address_of_host(1, interface), ConnectFailure::kNoAnswer);
  EXPECT_THAT(
      problems_of(survey),
      ElementsAre(fatal("h0, h2 do not reach h1: no answer at 10.0.0.1 port 4711 (eth0), 10.1.0.1 "
                        "port 4711 (eth1)",
                        "--ports 20000-20099")));
  survey.ports = "31000-31009";
  const auto problems = problems_of(survey);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].advice, HasSubstr("firewall-cmd --permanent --add-port=31000-31009/tcp"));
  EXPECT_THAT(problems[0].advice,
              HasSubstr("ip saddr { 10.0.0.0, 10.0.0.2, 10.1.0.0, 10.1.0.2 } tcp dport "
                        "31000-31009 accept"));
  EXPECT_THAT(problems[0].advice, Not(HasSubstr("20000")));
}

TEST(Verdict, OneDirectionIsEnoughForAFatalProblem) {
  Survey survey = survey_of(2);
  for (const int interface : {0, 1})
    fail(survey, 0, address_of_host(1, interface), ConnectFailure::kRefused);
  EXPECT_THAT(problems_of(survey),
              ElementsAre(fatal("h0 does not reach h1: refused", "a firewall rejects the port")));
}

TEST(Verdict, EachFailureHasAdviceOfItsOwn) {
  const auto advice = [](ConnectFailure failure) {
    Survey survey = survey_of(2);
    for (const int interface : {0, 1}) fail_for_all(survey, address_of_host(1, interface), failure);
    const auto problems = problems_of(survey);
    return problems.empty() ? "" : problems.front().advice;
  };
  EXPECT_THAT(advice(ConnectFailure::kNoRoute), HasSubstr("ip route get 10.0.0.1"));
  EXPECT_THAT(advice(ConnectFailure::kTurnedAway), HasSubstr("--network-interfaces '!10.0.0.1'"));
  EXPECT_THAT(advice(ConnectFailure::kStalled), HasSubstr("ping -M do -s 1472 10.0.0.1` from h0"));
}

TEST(Verdict, ADeadInterfaceIsReportedWithTheInterfaceThatWorks) {
  Survey survey = survey_of(3);
  fail_for_all(survey, address_of_host(2, 0), ConnectFailure::kNoAnswer);
  EXPECT_THAT(problems_of(survey),
              ElementsAre(limited("h0, h1 do not reach h2: no answer at 10.0.0.2 port 4711 (eth0); "
                                  "another address works",
                                  "--network-interfaces eth1")));
}

TEST(Verdict, AnAddressWhereDataStallsIsFatalBecauseAJobMayChooseIt) {
  Survey survey = survey_of(2);
  fail_for_all(survey, address_of_host(1, 0), ConnectFailure::kStalled);
  EXPECT_THAT(problems_of(survey),
              ElementsAre(fatal("h0 does not reach h1: data stalls at 10.0.0.1 port 4711 (eth0) "
                                "(the error of the system); another address works, but a job may "
                                "choose this one and hang",
                                "until then, give jobs `--network-interfaces eth1`")));
}

TEST(Verdict, TheAdviceLeavesOutInterfacesThatFail) {
  Survey survey = survey_of(2);
  EXPECT_EQ(interfaces_that_work(survey), "eth0");
  survey.hosts[0].facts->addresses[0].interface = "ens3";
  EXPECT_EQ(interfaces_that_work(survey), "ens3,eth0");
  fail_for_all(survey, address_of_host(1, 0), ConnectFailure::kNoAnswer);
  EXPECT_EQ(interfaces_that_work(survey), "ens3,eth1");
  for (auto& offered : survey.hosts[1].facts->addresses) offered.interface = "eth0";
  EXPECT_EQ(interfaces_that_work(survey), "10.0.0.0,10.1.0.1");
  fail_for_all(survey, address_of_host(1, 1), ConnectFailure::kNoAnswer);
  EXPECT_EQ(interfaces_that_work(survey), "");
}

TEST(Verdict, IfOneAddressFamilyFailsTheAdviceIsTheOther) {
  Survey survey = survey_of(2);
  for (std::size_t host : {0U, 1U}) {
    const std::string old = address_of_host(host, 1);
    const std::string v6 = format_text("[fd00::{}]:4711", host + 1);
    survey.hosts[host].facts->addresses[1] = {"eth0", v6};
    for (Attempt& attempt : survey.hosts[1 - host].attempts)
      if (attempt.address == old) attempt.address = v6;
  }
  fail_for_all(survey, "[fd00::1]:4711", ConnectFailure::kNoRoute);
  EXPECT_EQ(interfaces_that_work(survey), "0.0.0.0/0");
  fail_for_all(survey, address_of_host(0, 0), ConnectFailure::kNoRoute);
  EXPECT_EQ(interfaces_that_work(survey), "");
}

TEST(Verdict, VersionsOfFarandoleMustBeEqual) {
  Survey survey = survey_of(3);
  survey.hosts[1].facts->version = "1.1";
  EXPECT_THAT(problems_of(survey), ElementsAre(fatal("different versions: 1.0 on h0, h2; 1.1 on h1",
                                                     "install the same version on all hosts")));
}

TEST(Verdict, DifferentVersionsOfPackagesAreNotFatal) {
  Survey survey = survey_of(2);
  survey.hosts[1].facts->packages = {{"python3", "3.12.0"}, {"torch", ""}, {"jax", ""}};
  EXPECT_THAT(problems_of(survey),
              ElementsAre(limited("python3 has different versions: 3.11.2 on h0; 3.12.0 on h1",
                                  "same Python"),
                          limited("torch has different versions: not installed on h1; 2.4 on h0",
                                  "pip install torch==2.4")));
}

TEST(Verdict, ClocksMayDifferByASecond) {
  Survey survey = survey_of(3);
  survey.hosts[1].clock = ClockReading{.offset_seconds = -0.4, .error_seconds = 0.001};
  survey.hosts[2].clock = ClockReading{.offset_seconds = 0.5, .error_seconds = 0.001};
  EXPECT_THAT(problems_of(survey), IsEmpty());
  survey.hosts[2].clock = ClockReading{.offset_seconds = 1.1, .error_seconds = 0.001};
  EXPECT_THAT(problems_of(survey), ElementsAre(limited("the clock of h2 is 1.5 s ahead of that of "
                                                       "h1",
                                                       "timedatectl set-ntp true")));
  survey.hosts[2].clock->error_seconds = 0.6;
  EXPECT_THAT(problems_of(survey), IsEmpty());
}

TEST(Verdict, NamesAreReportedWithTheHostsThatDoNotKnowThem) {
  Survey survey = survey_of(3);
  survey.hosts[0].lookups[2].error = "unknown";
  survey.hosts[1].lookups[2].error = "unknown";
  survey.hosts[2].lookups[0].error = "unknown";
  survey.hosts[2].lookups.pop_back();
  EXPECT_THAT(
      problems_of(survey),
      ElementsAre(limited("names have no address (no answer of the name server in time): h2 on h2",
                          "`printf '%s\\n' '10.0.0.2 h2' | sudo tee -a /etc/hosts`"),
                  limited("names have no address (unknown): h0 on h2; h2 on h0, h1",
                          "'10.0.0.0 h0' '10.0.0.2 h2' |")));
}

TEST(Verdict, LongListsAreCut) {
  Survey survey = survey_of(20);
  for (const int interface : {0, 1})
    fail_for_all(survey, address_of_host(7, interface), ConnectFailure::kNoAnswer);
  const auto problems = problems_of(survey);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].found, HasSubstr("h0, h1, h2, h3 and 15 others do not reach h7"));
  EXPECT_THAT(problems[0].advice, HasSubstr("input tcp dport"));
}

TEST(Verdict, FatalProblemsComeFirst) {
  Survey survey = survey_of(2);
  survey.hosts[0].lookups[1].error = "unknown";
  survey.hosts[1].facts->version = "1.1";
  const auto problems = problems_of(survey);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_TRUE(problems[0].is_fatal);
  EXPECT_FALSE(problems[1].is_fatal);
}

}  // namespace
}  // namespace farandole
