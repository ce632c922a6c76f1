// The flags that name the hosts of a job and say how ssh connects to them. `farandole run` and
// `farandole doctor` have them.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"
#include "remote/host_list.h"
#include "remote/ssh_command.h"

namespace farandole {

// An object cannot be copied or moved, because the parser holds references into it.
class HostFlags {
 public:
  // `help` is the help text of the flag -H.
  HostFlags(CLI::App& command, const char* help);
  HostFlags(const HostFlags&) = delete;
  HostFlags& operator=(const HostFlags&) = delete;

  // Whether -H or --hostfile was given.
  bool names_hosts() const { return hosts_ || hostfile_; }
  // Whether a flag for ssh was given.
  bool has_ssh_flags() const { return ssh_port_ || ssh_identity_file_ || ssh_accept_new_hosts_; }
  // The hosts as the user has listed them. Errors: kFixCall.
  Result<std::vector<HostEntry>> listed_hosts() const;
  // Errors: kFixCall.
  Result<SshOptions> ssh_options() const;
  // Whether `flag` is one of the flags of this class.
  static bool is_host_flag(std::string_view flag);

 private:
  std::optional<std::string> hosts_;
  std::optional<std::string> hostfile_;
  std::optional<std::string> ssh_port_;
  std::optional<std::string> ssh_identity_file_;
  bool ssh_accept_new_hosts_ = false;
};

}  // namespace farandole
