#include "probe/hosts_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

#include "base/visible_text.h"
#include "probe/survey_in_test.h"

namespace farandole {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

std::string report_of(const Survey& survey, const ReportStyle& style = {}) {
  return hosts_report(survey, problems_of(survey), style);
}

int widest_line(const std::string& text) {
  int widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, columns_of(line));
  return widest;
}

TEST(HostsReport, TwoWorkingHostsHaveTwoTables) {
  EXPECT_EQ(report_of(survey_of(2)),
            "host       h0             h1\n"
            "address    10.0.0.0       10.0.0.1\n"
            "farandole  1.0            1.0\n"
            "kernel     6.1.0          6.1.0\n"
            "python3    3.11.2         3.11.2\n"
            "torch      2.4            2.4\n"
            "cores      4              4\n"
            "memory     16.0 GiB       16.0 GiB\n"
            "clock      same, ±0.2 ms  same, ±0.2 ms\n"
            "\n"
            "from \\ to  h0           h1\n"
            "h0                      10.0.0.1\n"
            "                        0.05 ms\n"
            "                        10.0 Gbit/s\n"
            "h1         10.0.0.0\n"
            "           0.05 ms\n"
            "           10.0 Gbit/s\n"
            "\n"
            "A job over these hosts works.\n");
}

TEST(HostsReport, OneHostHasNoConnections) {
  const std::string report = report_of(survey_of(1));
  EXPECT_THAT(report, Not(HasSubstr("from")));
  EXPECT_THAT(report, EndsWith("A job over these hosts works.\n"));
}

TEST(HostsReport, DifferencesAreMarked) {
  Survey survey = survey_of(3);
  survey.hosts[1].facts->packages[1].version = "2.5";
  survey.hosts[2].facts->cores = 8;
  survey.hosts[2].facts->packages[2].version = "0.4";
  const std::string report = report_of(survey);
  EXPECT_THAT(report, HasSubstr("torch      2.4            2.5            2.4  <- differs\n"));
  EXPECT_THAT(report, HasSubstr("jax        -              -              0.4  <- differs\n"));
  EXPECT_THAT(report, HasSubstr("cores      4              4              8  <- differs\n"));
  EXPECT_THAT(report, Not(HasSubstr("6.1.0  <-")));
}

TEST(HostsReport, AnAddressThatFailsIsReplacedByOneThatWorks) {
  Survey survey = survey_of(2);
  fail_for_all(survey, address_of_host(1, 0), ConnectFailure::kNoAnswer);
  EXPECT_THAT(report_of(survey), HasSubstr("h0                      10.1.0.1\n"));
  fail_for_all(survey, address_of_host(1, 1), ConnectFailure::kRefused);
  const std::string report = report_of(survey);
  EXPECT_THAT(report, HasSubstr("h0                      10.0.0.1\n"
                                "                        no answer\n"));
  EXPECT_THAT(report, EndsWith("A job over these hosts does not work.\n"));
}

TEST(HostsReport, AHostThatDidNotStartIsAProblem) {
  Survey survey = survey_of(2);
  survey.hosts[1] = {
      .name = "h1", .start_error = "Permission denied", .start_advice = "give a key"};
  survey.hosts[0].attempts.clear();
  const std::string report = report_of(survey);
  EXPECT_THAT(report, HasSubstr("cores      4              -\n"));
  EXPECT_THAT(report, HasSubstr("not tried"));
  EXPECT_THAT(report, HasSubstr("does not work  h1: Permission denied\n"
                                "               to do: give a key\n"));
}

TEST(HostsReport, TheSameAdviceIsShownOnce) {
  Survey survey = survey_of(2);
  for (const std::size_t host : {0U, 1U})
    fail_for_all(survey, address_of_host(host, 1), ConnectFailure::kNoAnswer);
  const std::string report = report_of(survey);
  const auto first = report.find("to do:");
  EXPECT_NE(first, std::string::npos);
  EXPECT_EQ(report.find("to do:", first + 1), std::string::npos) << report;
}

TEST(HostsReport, FitsTheTerminal) {
  for (const std::size_t hosts : {2U, 4U, 8U, 9U, 40U}) {
    Survey survey = survey_of(hosts);
    for (HostReport& host : survey.hosts) {
      host.name += "-with-a-name";
      for (NameLookup& lookup : host.lookups) lookup.name += "-with-a-name";
      host.facts->kernel = "6.1.0-18-cloud-amd64";
    }
    survey.hosts[1].facts->version = "1.1";
    for (const int interface : {0, 1})
      fail_for_all(survey, address_of_host(1, interface), ConnectFailure::kNoAnswer);
    for (const int columns : {60, 100, 160})
      EXPECT_LE(widest_line(report_of(survey, {.columns = columns})), columns)
          << hosts << " hosts\n"
          << report_of(survey, {.columns = columns});
  }
}

TEST(HostsReport, ManyHostsHaveASummary) {
  Survey survey = survey_of(12);
  survey.hosts[3].attempts.front().round_trip_seconds = 1e-3;
  survey.hosts[3].attempts.front().bytes_per_second = 1.25e7;
  EXPECT_EQ(report_of(survey, {.columns = 120}),
            "12 hosts; 132 of 132 connections work; round trips 0.05 ms to 1.00 ms; rates "
            "100.0 Mbit/s to 10.0 Gbit/s\n\nA job over these hosts works.\n");
}

TEST(HostsReport, ShowsTheFirstProblemsOnly) {
  Survey survey = survey_of(30);
  for (std::size_t host = 0; host < 30; ++host)
    for (const int interface : {0, 1})
      fail_for_all(survey, address_of_host(host, interface), ConnectFailure::kNoAnswer);
  const std::string report = report_of(survey);
  EXPECT_THAT(report, HasSubstr("30 hosts; 0 of 870 connections work\n"));
  EXPECT_THAT(report, HasSubstr("not reach h19: no answer"));
  EXPECT_THAT(report, Not(HasSubstr("not reach h20: no answer")));
  EXPECT_THAT(report, HasSubstr(" 10 more problems; `--json` shows all\n"));
}

TEST(HostsReport, ForeignTextCannotControlTheTerminal) {
  Survey survey = survey_of(2);
  survey.hosts[1].facts->kernel = "\x1b[31m";
  survey.hosts[1].facts->packages[1].version = "2.4\n";
  survey.hosts[0].lookups[1].error = "\x1b[2J";
  EXPECT_THAT(report_of(survey), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace farandole
