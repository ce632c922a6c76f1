// For tests: surveys of hosts that all reach each other. A test then changes the survey.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/format.h"
#include "probe/survey.h"

namespace farandole {

// Host k is h<k>, with the addresses 10.0.0.<k> on eth0 and 10.1.0.<k> on eth1, and port 4711.
inline std::string address_of_host(std::size_t host, int interface) {
  return format_text("10.{}.0.{}:4711", interface, host);
}

inline HostReport report_of_host(std::size_t host, std::size_t hosts) {
  HostReport report{.name = format_text("h{}", host)};
  report.facts = HostFacts{
      .version = "1.0",
      .kernel = "6.1.0",
      .packages = {{"python3", "3.11.2"}, {"torch", "2.4"}, {"jax", ""}},
      .cores = 4,
      .memory_bytes = std::int64_t{1} << 34,
      .addresses = {{"eth0", address_of_host(host, 0)}, {"eth1", address_of_host(host, 1)}}};
  report.clock = ClockReading{.offset_seconds = 0.0001, .error_seconds = 0.0002};
  for (std::size_t other = 0; other < hosts; ++other) {
    report.lookups.push_back({format_text("h{}", other), ""});
    for (const int interface : {0, 1})
      if (other != host)
        report.attempts.push_back({.to = static_cast<std::uint32_t>(other),
                                   .address = address_of_host(other, interface),
                                   .round_trip_seconds = 5e-5,
                                   .bytes_per_second = 1.25e9});
  }
  return report;
}

inline Survey survey_of(std::size_t hosts) {
  Survey survey;
  for (std::size_t host = 0; host < hosts; ++host)
    survey.hosts.push_back(report_of_host(host, hosts));
  return survey;
}

// Makes an attempt fail.
inline void fail(Survey& survey, std::size_t from, const std::string& address,
                 ConnectFailure failure) {
  for (Attempt& attempt : survey.hosts[from].attempts) {
    if (attempt.address != address) continue;
    attempt.failure = failure;
    attempt.error = "the error of the system";
    attempt.round_trip_seconds = 0;
    attempt.bytes_per_second = 0;
  }
}

// Makes all attempts at this address fail.
inline void fail_for_all(Survey& survey, const std::string& address, ConnectFailure failure) {
  for (std::size_t from = 0; from < survey.hosts.size(); ++from)
    fail(survey, from, address, failure);
}

}  // namespace farandole
