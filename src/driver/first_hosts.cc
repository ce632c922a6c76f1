#include "driver/first_hosts.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <utility>

#include "base/format.h"
#include "base/poller.h"
#include "base/try.h"
#include "driver/host_discovery.h"
#include "launcher/signal_setup.h"

namespace farandole {
namespace {

constexpr std::uint64_t kProgramTag = 0;
constexpr std::uint64_t kSignalTag = 1;
constexpr std::uint64_t kCallerTag = 2;

// Handles the signals that have arrived: after Ctrl-Z, stops this process. Returns a signal that
// asks the job to end; 0 if there is none.
int handle_signals(const Descriptor& signals) {
  signalfd_siginfo signal_info{};
  while (::read(signals.get(), &signal_info, sizeof(signal_info)) == sizeof(signal_info)) {
    const int signal = static_cast<int>(signal_info.ssi_signo);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT)
      return signal;
    if (signal == SIGTSTP) stop_after_ctrl_z();
  }
  return 0;
}

}  // namespace

std::vector<HostEntry> first_hosts(const std::vector<HostEntry>& listed_hosts, int slots_max) {
  std::vector<HostEntry> hosts;
  for (const HostEntry& host : listed_hosts)
    if (slots_of(hosts) + host.slots <= slots_max) hosts.push_back(host);
  return hosts;
}

Result<FirstHosts> find_first_hosts(const DiscoveryPlan& plan, const SearchLimits& limits,
                                    const OriginalProcessState& state,
                                    const std::function<void(const std::string&)>& show_line) {
  FARANDOLE_TRY_ASSIGN(Poller poller, Poller::create());
  if (!poller.add(limits.signals.get(), Poller::Interest::kReading, kSignalTag) ||
      (limits.caller >= 0 && !poller.add(limits.caller, Poller::Interest::kReading, kCallerTag)))
    return Status::stop("the driver cannot watch its own descriptors");
  HostDiscovery discovery(plan, poller, kProgramTag, state);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const TimePoint limit = now() + limits.time_max;
  int slots_shown = -1;
  while (now() < limit) {
    auto [listed_hosts, error] = discovery.advance(now());
    if (!error.empty()) show_line(error);
    if (listed_hosts) {
      std::vector<HostEntry> hosts = first_hosts(*listed_hosts, plan.slots_max);
      const int slots = slots_of(hosts);
      if (slots >= plan.slots_at_start) return FirstHosts{.hosts = std::move(hosts)};
      if (std::exchange(slots_shown, slots) != slots)
        show_line(format_text("the hosts have {} slot{} so far; the job starts when there are {}",
                              slots, slots == 1 ? "" : "s", plan.slots_at_start));
    }
    const auto ready_tags = poller.wait(std::min(limit, discovery.deadline()));
    if (std::ranges::count(ready_tags, kCallerTag) > 0) return FirstHosts{.signal = SIGTERM};
    if (const int signal = handle_signals(limits.signals); signal != 0)
      return FirstHosts{.signal = signal};
  }
  return Status::stop(
      format_text("no hosts with {} slots were found within {} s (--elastic-timeout)",
                  plan.slots_at_start, limits.time_max.count()));
}

}  // namespace farandole
