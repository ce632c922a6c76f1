#include "remote/ssh_command.h"

#include <algorithm>
#include <array>
#include <utility>

namespace farandole {
namespace {

// ControlMaster is off, so that each job has its own connections, which end with the job.
constexpr std::array kSshSettings{
    "BatchMode=yes",           "ForwardAgent=no",       "ForwardX11=no",
    "ClearAllForwardings=yes", "PermitLocalCommand=no", "RemoteCommand=none",
    "ControlMaster=no",        "ControlPath=none",      "EscapeChar=none",
    "ConnectTimeout=20",       "ServerAliveInterval=5", "ServerAliveCountMax=6",
    "LogLevel=ERROR"};

}  // namespace

std::string quote_for_shell(std::string_view word) {
  std::string quoted = "'";
  for (const char letter : word) {
    if (letter == '\'')
      quoted += "'\\''";
    else
      quoted += letter;
  }
  return quoted + "'";
}

std::string shell_text(const std::vector<std::string>& command) {
  constexpr std::string_view kPlainLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:@,+%";
  std::string text;
  for (const std::string& word : command) {
    const bool is_plain =
        !word.empty() && word.find_first_not_of(kPlainLetters) == std::string::npos;
    text += (text.empty() ? "" : " ") + (is_plain ? word : quote_for_shell(word));
  }
  return text;
}

std::string hint_for_failed_start(const std::vector<std::string>& command, int exit_code,
                                  const std::vector<std::string>& lines) {
  const auto output_has = [&lines](std::string_view part) {
    return std::ranges::any_of(
        lines, [part](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  if (exit_code == 126 || exit_code == 127)
    return "install Farandole on that host at the same path as here";
  if (output_has("Host key verification failed"))
    return "connect to that host once with ssh and check its key, or give --ssh-accept-new-hosts";
  if (output_has("Permission denied"))
    return "give a key that the host accepts with --ssh-identity-file, or start ssh-agent";
  if (output_has("Could not resolve hostname"))
    return "add the name to /etc/hosts of this host or to its DNS, or give an address instead";
  if (output_has("Connection refused") || output_has("timed out"))
    return "check that sshd runs on that host, and give its port with --ssh-port";
  if ((exit_code != kSshError && !lines.empty()) || command.size() < 2) return "";
  std::vector<std::string> test_command{"ssh"};
  for (std::size_t i = 2; i + 1 < command.size(); ++i) {
    if (command[i] == "-o")
      ++i;  // a setting
    else
      test_command.push_back(command[i]);
  }
  return "try `" + shell_text(test_command) + " true`";
}

std::vector<std::string> ssh_command(const HostEntry& host, const SshOptions& options,
                                     const std::vector<std::string>& words) {
  std::vector<std::string> command{"ssh", "-T"};
  const auto add = [&command](const char* flag, std::string value) {
    command.emplace_back(flag);
    command.push_back(std::move(value));
  };
  for (const char* setting : kSshSettings) add("-o", setting);
  add("-o",
      std::string("StrictHostKeyChecking=") + (options.accepts_new_hosts ? "accept-new" : "yes"));
  if (options.port != 0) add("-p", std::to_string(options.port));
  if (!options.identity_file.empty()) add("-i", options.identity_file);
  if (!host.user.empty()) add("-l", host.user);
  std::string remote_command = "exec";
  for (const std::string& word : words) remote_command.append(" ").append(quote_for_shell(word));
  command.insert(command.end(), {"--", host.name, std::move(remote_command)});
  return command;
}

}  // namespace farandole
