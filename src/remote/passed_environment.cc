#include "remote/passed_environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace farandole {
namespace {

constexpr std::array<std::string_view, 31> kExcludedNames{
    "HOME",    "USER",      "LOGNAME", "USERNAME", "SHELL",         "SHLVL",          "PWD",
    "OLDPWD",  "HOSTNAME",  "HOST",    "HOSTTYPE", "MAIL",          "TERM",           "COLORTERM",
    "COLUMNS", "LINES",     "DISPLAY", "WINDOWID", "XAUTHORITY",    "TMPDIR",         "TMP",
    "TEMP",    "TMUX",      "STY",     "_",        "INVOCATION_ID", "JOURNAL_STREAM", "KRB5CCNAME",
    "GPG_TTY", "LS_COLORS", "MANPATH"};

constexpr std::array<std::string_view, 26> kExcludedBeginnings{
    "SSH_",  "XDG_",        "DBUS_", "WAYLAND_", "GNOME_",
    "VTE_",  "TERM_",       "TMUX_", "SUDO_",    "SYSTEMD_",
    "LESS",  "BASH_",       "SLURM", "PBS_",     "OMPI_",
    "PMI",   "PRTE_",       "LSB_",  "JSM_",     "FLUX_",
    "PALS_", "KUBERNETES_", "PET_",  "VC_",      "JOB_COMPLETION_",
    "HYDRA_"};

}  // namespace

bool is_passed_on(std::string_view name) {
  return !name.empty() && std::ranges::find(kExcludedNames, name) == kExcludedNames.end() &&
         std::ranges::none_of(kExcludedBeginnings,
                              [&](std::string_view start) { return name.starts_with(start); });
}

std::vector<std::string> passed_environment(const std::vector<std::string>& lines) {
  std::vector<std::string> passed_lines;
  for (const std::string& line : lines) {
    const auto equals_sign = line.find('=');
    if (equals_sign != std::string::npos &&
        is_passed_on(std::string_view(line).substr(0, equals_sign)))
      passed_lines.push_back(line);
  }
  return passed_lines;
}

void set_environment(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const auto equals_sign = line.find('=');
    if (equals_sign == std::string::npos) continue;
    ::setenv(line.substr(0, equals_sign).c_str(), line.c_str() + equals_sign + 1, 1);
  }
}

}  // namespace farandole
