// SimulatedDriver: what the driver of a simulated elastic job does with the launchers on its hosts.
// It uses the real HostRoster; the rest follows src/driver/driver.cc by hand. Node 0's launcher is
// on the driver's host.
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
  // The first hosts, with that of node 0. With `discovers`, the list of hosts may change.
  SimulatedDriver(const std::vector<HostEntry>& first, bool discovers);

  // What it does to the launcher of a node.
  struct Action {
    enum class Kind { kStart, kLeave, kKill };
    Kind kind = Kind::kStart;
    int node = 0;
    HostEntry host{};
  };
  std::vector<Action> advance(TimePoint now);

  // What node 0's launcher has written.
  void joined(int node, TimePoint now);
  void lost(int node, TimePoint now);
  void leaves(int node) { at(node).is_leaving = true; }
  void formed(std::int64_t epoch) { epoch_ = epoch; }
  // The connection to a launcher has ended.
  void ended(int node, bool has_failed, TimePoint now);

  Replacement replace_first();

  bool discovers() const { return roster_.has_value(); }
  const std::vector<HostEntry>& list() const { return listed_; }
  void set_list(const std::vector<HostEntry>& hosts) { listed_ = hosts; }
  // Whether all listed hosts take part, and no others.
  bool is_settled() const;
  // How often a number went to another host.
  int numbers_used_again() const { return numbers_used_again_; }

 private:
  struct Process {
    HostEntry host{};
    bool runs = true;
    bool told_to_leave = false;
    bool is_leaving = false;
    bool takes_part = false;
    int failures = 0;
    std::optional<TimePoint> joined_at{};
    std::optional<TimePoint> start_again{};
    std::optional<TimePoint> kill_at{};
  };

  Process& at(int node) { return processes_.at(static_cast<std::size_t>(node)); }
  bool may_start_again(int node) const { return !roster_ || roster_->is_wanted(node); }
  void start(int node, const HostEntry& host, int failures, std::vector<Action>& actions);
  void take_list(TimePoint now, std::vector<Action>& actions);

  std::vector<Process> processes_;
  std::optional<HostRoster> roster_;
  std::vector<HostEntry> listed_;
  TimePoint next_look_{};
  std::size_t nodes_joined_;
  std::uint32_t lost_launchers_ = 0;
  std::int64_t epoch_ = 0;
  int numbers_used_again_ = 0;
};

}  // namespace farandole
