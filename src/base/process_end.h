// How a process ended, and how to describe it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/descriptor.h"

namespace farandole {

// The process called exit(code) if `signal` is 0. Otherwise this signal killed it.
struct ProcessEnd {
  int code = 0;
  int signal = 0;

  bool failed() const { return code != 0 || signal != 0; }
  // The exit code that shells use: 128 + signal number.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

// Whether the process has ended. A process that its parent has not reaped counts as ended.
bool has_ended(const Descriptor& pidfd);

// Reaps a child that has ended. Returns an empty value if the child still runs. Does not wait.
std::optional<ProcessEnd> reap(pid_t child);

// "SIGTERM", or "signal 99" if it has no name.
std::string signal_name(int signal);

// "exited with code 3", "killed by signal 9 (SIGKILL)".
std::string describe(const ProcessEnd& end);

}  // namespace farandole
