// Which members of each group share a host, and what each host knows. The members of a group on one
// host are a host part. They share a board and a piece of memory that other hosts do not see.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "board.h"
#include "engine/failure.h"
#include "script.h"

namespace farandole::sim {

// What a host part knows about a member that leaves the group. A rank on the host of this part
// counts as leaving when it wants to leave or has left. A rank on another host counts as leaving
// when lane 0 of this part is notified of its leave. The tickets say in which order the host
// learned of the leaves.
struct KnownLeave {
  int rank;
  std::uint32_t ticket;
};

struct HostPart {
  int host;
  std::vector<int> members;  // of the group, ascending; member 0 of the part has lane 0
  SimulatedBoard board;
  std::vector<KnownLeave> leaves = {};  // in the order of their tickets
};

// A host with its doorbells.
struct Host {
  std::vector<int> workers;
  EndedRanks ended = {};  // the deaths and leaves that the doorbells report
  std::uint32_t tickets = 0;
};

class Hosts {
 public:
  explicit Hosts(const Script& script);

  // If the script names no hosts, all workers are on host 0.
  int host_of(int worker) const { return worker_hosts_[static_cast<std::size_t>(worker)]; }
  int count() const { return static_cast<int>(hosts_.size()); }
  Host& host(int number) { return hosts_[static_cast<std::size_t>(number)]; }

  // The host parts of a group, ordered by their lowest members.
  const std::vector<HostPart>& parts(int group) const {
    return parts_[static_cast<std::size_t>(group)];
  }
  bool spans_hosts(int group) const { return parts(group).size() > 1; }
  int part_of(int group, int member) const { return position_of(group, member).part; }
  // The index of a member in its host part.
  int index_of(int group, int member) const { return position_of(group, member).index; }
  HostPart& part(int group, int number) {
    return parts_[static_cast<std::size_t>(group)][static_cast<std::size_t>(number)];
  }
  // The worker that is lane 0 of a host part.
  int worker_of_lane_0(int group, int part) const;
  const Script& script() const { return script_; }

  // Returns which ranks have ended, as far as the members of a host part know.
  EndedRanks ended_in(int group, int part);
  // Returns the other hosts that notice a worker's death themselves, because their connections to
  // the worker break. Lanes connect the members with the same index. The lanes of the world count,
  // too, because all workers are members of the world.
  std::vector<int> hosts_connected_to(int worker) const;
  // Returns the hosts that a worker notifies of a death: the other hosts of each group in which the
  // worker is lane 0. The world counts as such a group, too.
  std::vector<int> hosts_notified_by(int worker) const;

 private:
  struct MemberPosition {
    int part;
    int index;
  };
  const MemberPosition& position_of(int group, int member) const {
    return positions_[static_cast<std::size_t>(group)][static_cast<std::size_t>(member)];
  }
  void add_group(int group);
  std::vector<bool> hosts_reached_by(int worker, bool only_lane_0) const;

  const Script& script_;
  std::vector<int> worker_hosts_;
  std::vector<Host> hosts_;
  std::vector<std::vector<HostPart>> parts_;            // by group
  std::vector<std::vector<MemberPosition>> positions_;  // by group and member
};

}  // namespace farandole::sim
