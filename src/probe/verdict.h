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
  bool is_fatal = false;  // a job on these hosts fails or may hang
  std::string found;      // what is wrong, for people
  std::string advice;     // what the user can do, if possible with a command
  friend bool operator==(const Problem&, const Problem&) = default;
};

// The most important problems first. A job over the hosts works if none of them is fatal.
std::vector<Problem> problems_of(const Survey& survey);

// Returns the attempt for the address that a job would use between two hosts: the first attempt
// that works, in the order of the offered addresses. If all failed, returns the first failed
// attempt. Null if nothing was tried.
const Attempt* used_attempt(const Survey& survey, std::size_t from, std::size_t to);

// Returns a value for --network-interfaces. With it, each host offers only addresses that every
// other host reaches. Empty if a host has no such address.
std::string interfaces_that_work(const Survey& survey);

// Returns the address without its port. If the text is not an address, returns the text unchanged.
std::string ip_of(const std::string& address);

// Returns "no answer", "refused" and so on.
std::string short_text(ConnectFailure failure);

}  // namespace farandole
