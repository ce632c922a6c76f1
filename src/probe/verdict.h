// Verdict: what is wrong with several hosts, according to a survey, and what users can do about it.
// All functions are pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "probe/survey.h"

namespace farandole {

struct Problem {
  bool is_fatal = false;  // a job over these hosts would not work, or may hang
  std::string found;
  std::string advice;  // with the command that helps, if there is one
  friend bool operator==(const Problem&, const Problem&) = default;
};

// The most important problems first. A job over the hosts works if none of them is fatal.
std::vector<Problem> problems_of(const Survey& survey);

// Of the attempts of one host at another host, returns the one that a job would use: the first
// attempt that works, in the order of the offered addresses. If none works, it is the first one
// that failed. Null if nothing was tried.
const Attempt* used_attempt(const Survey& survey, std::size_t from, std::size_t to);

// The value of --network-interfaces with which all hosts offer only addresses that all others
// reach. Empty if a host has no such address.
std::string interfaces_that_work(const Survey& survey);

// The address without its port. The unchanged text if it is not an address.
std::string ip_of(const std::string& address);

// "no answer", "refused" and so on.
std::string short_text(ConnectFailure failure);

}  // namespace farandole
