#include "base/process_end.h"

#include <poll.h>
#include <string.h>
#include <sys/wait.h>

namespace farandole {

bool has_ended(const Descriptor& pidfd) {
  pollfd polled{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) == 1 && (polled.revents & POLLIN) != 0;
}

std::optional<ProcessEnd> reap(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, WNOHANG) != child) return std::nullopt;
  if (WIFSIGNALED(status)) return ProcessEnd{.signal = WTERMSIG(status)};
  return ProcessEnd{.code = WEXITSTATUS(status)};
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe(const ProcessEnd& end) {
  if (end.signal == 0) return "exited with code " + std::to_string(end.code);
  return "killed by signal " + std::to_string(end.signal) + " (" + signal_name(end.signal) + ")";
}

}  // namespace farandole
