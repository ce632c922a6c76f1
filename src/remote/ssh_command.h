// Builds the command that starts a program on another host over ssh. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "remote/host_list.h"

namespace farandole {

struct SshOptions {
  int port = 0;                    // 0: as in the user's configuration of ssh
  std::string identity_file{};     // empty: as in the user's configuration of ssh
  bool accepts_new_hosts = false;  // whether ssh may accept the key of a host that it does not know
};

// The largest number of connections that are made at the same time. If all of them go through one
// jump host, the sshd of this host rejects some of them as soon as there are 10 (MaxStartups).
inline constexpr std::ptrdiff_t kSshConnectionsMax = 8;
inline constexpr int kSshError = 255;  // the exit code of ssh if the connection fails or ends

// Returns the program and its arguments. ssh asks no questions, forwards neither ports nor the
// agent nor X11, and rejects a host if its key is unknown or has changed. On the other host, a
// shell gets `words`, each quoted.
std::vector<std::string> ssh_command(const HostEntry& host, const SshOptions& options,
                                     const std::vector<std::string>& words);

// Returns what users can do if ssh, or the program on the other host, has written only `lines` and
// ended with `exit_code`. Empty if the remedy is unknown. `command` is that of ssh_command().
std::string hint_for_failed_start(const std::vector<std::string>& command, int exit_code,
                                  const std::vector<std::string>& lines);

// The command as users can type it into a shell: words are quoted where they need it.
std::string shell_text(const std::vector<std::string>& command);

// Quotes a word for a POSIX shell.
std::string quote_for_shell(std::string_view word);

}  // namespace farandole
