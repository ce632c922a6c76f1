// How a process ended, and how we say it.
#pragma once

#include <string>

namespace farandole {

// By exit(code), or by a signal (then `signal` is not 0).
struct ProcessEnd {
  int code = 0;
  int signal = 0;

  bool failed() const { return code != 0 || signal != 0; }
  // As shells count: 128 + signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

// "SIGTERM"; "signal 99" for one without a name.
std::string signal_name(int signal);

// "exited with code 3", "killed by signal 9 (SIGKILL)".
std::string describe(const ProcessEnd& end);

}  // namespace farandole
