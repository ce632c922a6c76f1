// One check of `farandole doctor`: a function that tries something and returns what it found.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace farandole {

enum class Health : std::uint8_t { kWorks, kLimited, kDoesNotWork, kNotInstalled };

struct Finding {
  Health health = Health::kWorks;
  std::string found;      // what the check has found, for people
  std::string advice;     // what the user can do; may be empty
  std::string version{};  // the version of the thing that was found, if it has one
};

struct Check {
  std::vector<std::string> names;  // one name for each finding
  bool essential = false;          // if this check fails, no job can run
  std::function<std::vector<Finding>()> run;
};

// A check with one finding.
Check single_check(std::string name, bool essential, Finding (*run)());

// Runs the check in a process of its own. If that process crashes or does not end within 10 s, each
// finding of the check reports this.
std::vector<Finding> findings_of(const Check& check);

}  // namespace farandole
