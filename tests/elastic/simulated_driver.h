// SimulatedDriver: the driver of a simulated elastic job, which starts and ends the launchers on
// its hosts. It uses the real HostRoster; all other code imitates src/driver/driver.cc. Node 0's
// launcher is on the driver's host.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "driver/host_roster.h"
#include "nodes/node_options.h"

namespace farandole {

class SimulatedDriver {
 public:
  // `first_hosts` begins with the host of node 0. With `discovers_hosts`, the list of hosts may
  // change.
  SimulatedDriver(const std::vector<HostEntry>& first_hosts, bool discovers_hosts);

  // What the driver does to the launcher of a node.
  struct Action {
    enum class Kind { kStart, kLeave, kKill };
    Kind kind = Kind::kStart;
    int node = 0;
    HostEntry host{};
  };
  std::vector<Action> advance(TimePoint now);

  // Events that node 0's launcher has reported.
  void node_joined(int node, TimePoint now);
  void node_lost(int node, TimePoint now);
  void node_leaves(int node) { process_of(node).is_leaving = true; }
  void group_formed(std::int64_t epoch) { epoch_ = epoch; }
  // The connection to a launcher has ended.
  void launcher_ended(int node, bool has_failed, TimePoint now);

  Replacement replace_node_0_launcher();

  bool discovers_hosts() const { return roster_.has_value(); }
  const std::vector<HostEntry>& listed_hosts() const { return listed_hosts_; }
  void set_listed_hosts(const std::vector<HostEntry>& hosts) { listed_hosts_ = hosts; }
  // Whether exactly the listed hosts take part.
  bool is_settled() const;
  // How often a node number was given to another host.
  int node_numbers_reused() const { return node_numbers_reused_; }

 private:
  struct Process {
    HostEntry host{};
    bool is_running = true;
    bool was_told_to_leave = false;
    bool is_leaving = false;
    bool takes_part = false;
    int failures = 0;
    std::optional<TimePoint> joined_at{};
    std::optional<TimePoint> restart_at{};
    std::optional<TimePoint> kill_at{};
  };

  Process& process_of(int node) { return processes_.at(static_cast<std::size_t>(node)); }
  bool may_restart(int node) const { return !roster_ || roster_->is_wanted(node); }
  void start(int node, const HostEntry& host, int failures, std::vector<Action>& actions);
  void read_host_list(TimePoint now, std::vector<Action>& actions);

  std::vector<Process> processes_;
  std::optional<HostRoster> roster_;
  std::vector<HostEntry> listed_hosts_;
  TimePoint next_list_read_{};
  std::size_t nodes_joined_;
  std::uint32_t lost_launchers_ = 0;
  std::int64_t epoch_ = 0;
  int node_numbers_reused_ = 0;
};

}  // namespace farandole
