// Flags of `farandole run`. A program that starts a job passes its descriptors with these flags.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "farandole/status.h"
#include "launcher/job_options.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class CallerFlags {
 public:
  // The heading of these flags in the help text.
  static constexpr const char* kHelpGroup =
      "For programs that start jobs and pass open descriptors";
  explicit CallerFlags(CLI::App& command);
  CallerFlags(const CallerFlags&) = delete;
  CallerFlags& operator=(const CallerFlags&) = delete;

  // Call it after parsing. Errors: kFixCall if a value is not the number of an open descriptor, or
  // if a list does not have the length that the job needs.
  Result<CallerDescriptors> descriptors(int workers) const;
  bool only_lists_hosts() const { return only_lists_hosts_; }

 private:
  std::string caller_;
  std::string report_;
  std::string door_;
  std::string streams_;
  bool only_lists_hosts_ = false;
};

}  // namespace farandole
