// The flags of `farandole run` by which a program that starts a job hands descriptors over.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "farandole/status.h"
#include "launcher/job_options.h"

namespace farandole {

// Neither copies nor moves: the parser holds references into it.
class CallerFlags {
 public:
  explicit CallerFlags(CLI::App& command);
  CallerFlags(const CallerFlags&) = delete;
  CallerFlags& operator=(const CallerFlags&) = delete;

  // After parsing. Errors: kFixCall if something is no number of an open descriptor, or a list has
  // another length than the job needs.
  Result<CallerDescriptors> descriptors(int workers) const;

 private:
  std::string handle_;
  std::string report_;
  std::string channels_;
  std::string streams_;
};

}  // namespace farandole
