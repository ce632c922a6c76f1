#include "driver/host_process.h"

#include "base/format.h"
#include "base/process_end.h"

namespace farandole {

bool was_lost(const HostProcess& process) {
  const auto& end = process.remote.end();
  const bool is_ssh_error =
      end && !process.remote.is_own_host() && end->code == kSshError && !process.has_exit_code_255;
  return end && (end->signal != 0 || is_ssh_error);
}

std::string how_it_ended(const HostProcess& process) {
  if (!process.remote.is_own_host() && was_lost(process)) return "the connection has ended";
  const ProcessEnd& end = *process.remote.end();
  return format_text("the launcher {} {}", end.signal != 0 ? "was" : "has", describe(end));
}

int exit_code_of(const HostProcess& process) {
  const auto& end = process.remote.end();
  const bool is_known = end && (process.remote.is_own_host() || !was_lost(process));
  return is_known ? end->exit_code() : 1;
}

}  // namespace farandole
