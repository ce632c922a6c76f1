#include "host_flags.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/system_files.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "base/whole_number.h"

namespace farandole {
namespace {

constexpr int kPortMax = 65535;

}  // namespace

HostFlags::HostFlags(CLI::App& command, const char* help) {
  const auto add = [&](const char* flag, const char* type, std::optional<std::string>& value,
                       const char* text) {
    command.add_option(flag, value, text)
        ->type_name(type)
        ->group("Several hosts")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  };
  add("-H,--hosts", "HOST:SLOTS,...", hosts_, help);
  add("--hostfile", "FILE", hostfile_,
      "The same, from a file with a line for each host, such as `hen slots=4` or `hen:4`");
  add("-p,--ssh-port", "PORT", ssh_port_, "The port of ssh on the hosts");
  add("-i,--ssh-identity-file", "FILE", ssh_identity_file_, "The private key for ssh");
  command
      .add_flag("--ssh-accept-new-hosts", ssh_accept_new_hosts_,
                "Lets ssh accept the keys of hosts that it does not know yet")
      ->group("Several hosts");
}

bool HostFlags::is_host_flag(std::string_view flag) {
  constexpr std::array<std::string_view, 5> kFlags{"--hosts", "--hostfile", "--ssh-port",
                                                   "--ssh-identity-file", "--ssh-accept-new-hosts"};
  return std::ranges::find(kFlags, flag) != kFlags.end();
}

Result<std::vector<HostEntry>> HostFlags::listed_hosts() const {
  if (hosts_ && hostfile_) return Status::fix_call("give -H or --hostfile, not both");
  if (hosts_) return parse_hosts(*hosts_);
  const auto text = file_text(*hostfile_);
  if (!text)
    return Status::fix_call(
        format_text("--hostfile: the file \"{}\" cannot be read", escape_controls(*hostfile_)));
  return parse_hostfile(*text, *hostfile_);
}

Result<SshOptions> HostFlags::ssh_options() const {
  SshOptions options{.identity_file = ssh_identity_file_.value_or(""),
                     .accepts_new_hosts = ssh_accept_new_hosts_};
  if (ssh_port_) {
    FARANDOLE_TRY_ASSIGN(options.port, parse_whole_number("--ssh-port", *ssh_port_, 1, kPortMax));
  }
  return options;
}

}  // namespace farandole
