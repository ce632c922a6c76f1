// For tests: the members of one group on several hosts, in one process and one thread, with lanes
// in memory. The members are advanced in a random order from a seed.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "collective/call_in_test.h"
#include "collective/group_in_test.h"
#include "hosts/lanes_in_test.h"
#include "hosts/start_step.h"

namespace farandole {

using HostMembers = std::vector<std::vector<int>>;  // the members of each host part

class HostsInTest {
 public:
  explicit HostsInTest(HostMembers parts, NetworkOptions options = {})
      : parts_(std::move(parts)), network_(hosts(), lanes_of(parts_), options) {
    for (int host = 0; host < hosts(); ++host) {
      const auto& members = parts_[static_cast<std::size_t>(host)];
      hosts_.push_back(std::make_unique<GroupInTest>(static_cast<int>(members.size())));
      for (std::size_t index = 0; index < members.size(); ++index) {
        const auto member = static_cast<std::size_t>(members[index]);
        positions_.resize(std::max(positions_.size(), member + 1));
        positions_[member] = {host, static_cast<int>(index)};
        group(members[index]).parts = {.host = host,
                                       .members = parts_,
                                       .lane = network_.lane(host, static_cast<int>(index)),
                                       .start_step = start_step};
      }
    }
  }

  int hosts() const { return static_cast<int>(parts_.size()); }
  int members() const { return static_cast<int>(positions_.size()); }
  const HostMembers& parts() const { return parts_; }
  int host_of(int member) const { return position_of(member).first; }
  // `member` is a member of the whole group.
  Group& group(int member) { return host(member).group(position_of(member).second); }
  SharedHeap& heap(int member) { return host(member).heap(position_of(member).second); }
  // Whether the member makes the note of its host and reads the notes of the other hosts.
  bool makes_note(int member) const { return position_of(member).second == 0; }
  LanesInTest& network() { return network_; }
  void use_hierarchical_adasum() {
    for (int member = 0; member < members(); ++member)
      group(member).parts->hierarchical_adasum = true;
  }

 private:
  static int lanes_of(const HostMembers& parts) { return HostParts{.members = parts}.lanes(); }
  const std::pair<int, int>& position_of(int member) const {
    return positions_[static_cast<std::size_t>(member)];
  }
  GroupInTest& host(int member) {
    return *hosts_[static_cast<std::size_t>(position_of(member).first)];
  }

  HostMembers parts_;
  LanesInTest network_;
  std::vector<std::unique_ptr<GroupInTest>> hosts_;
  std::vector<std::pair<int, int>> positions_;  // by member: host, index in the host part
};

// Runs one sequence of calls on all members. The test chooses which member advances next.
class HostsRun {
 public:
  HostsRun(HostsInTest& cluster, const std::vector<PreparedCall>& calls)
      : cluster_(cluster), runs_(runs_of_members(cluster.members(), calls)) {}

  bool is_over() const { return std::ranges::all_of(runs_, &MemberRun::is_over); }
  // The same as MemberRun::advance_once().
  bool advance_member(int member) {
    return runs_[static_cast<std::size_t>(member)].advance_once(cluster_.group(member),
                                                                cluster_.heap(member));
  }

 private:
  HostsInTest& cluster_;
  std::vector<MemberRun> runs_;
};

// Advances members and moves data in a random order. Sometimes advances the chosen member until it
// must wait for other members. The member may then have reached a later call.
inline void run_in_random_order(HostsInTest& cluster, const std::vector<PreparedCall>& calls,
                                unsigned seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  HostsRun run(cluster, calls);
  int idle_turns = 0;
  while (!run.is_over() && !::testing::Test::HasFailure()) {
    const int member = static_cast<int>(random_below(random, cluster.members()));
    const bool runs_ahead = random_below(random, 4) == 0;
    bool moved = run.advance_member(member);
    while (runs_ahead && run.advance_member(member)) {
    }
    if (random_below(random, 3) > 0) moved = cluster.network().move(random) || moved;
    idle_turns = moved ? 0 : idle_turns + 1;
    ASSERT_LT(idle_turns, 1000) << "all unfinished members wait";
  }
}

}  // namespace farandole
