#include "base/process_end.h"

#include <string.h>

namespace farandole {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe(const ProcessEnd& end) {
  if (end.signal == 0) return "exited with code " + std::to_string(end.code);
  return "killed by signal " + std::to_string(end.signal) + " (" + signal_name(end.signal) + ")";
}

}  // namespace farandole
