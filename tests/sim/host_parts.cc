#include "host_parts.h"

#include <algorithm>

namespace farandole::sim {
namespace {

std::size_t lanes_of(const std::vector<std::vector<int>>& parts) {
  std::size_t lanes = parts.front().size();
  for (const auto& members : parts) lanes = std::min(lanes, members.size());
  return lanes;
}

// Returns the numbers of the hosts that are marked in `hosts`, without our own host.
std::vector<int> other_hosts_in(const std::vector<bool>& hosts, int own_host) {
  std::vector<int> numbers;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    if (hosts[host] && static_cast<int>(host) != own_host)
      numbers.push_back(static_cast<int>(host));
  return numbers;
}

}  // namespace

Hosts::Hosts(const Script& script)
    : script_(script),
      worker_hosts_(script.hosts.empty()
                        ? std::vector<int>(static_cast<std::size_t>(script.workers))
                        : script.hosts) {
  hosts_.resize(static_cast<std::size_t>(*std::ranges::max_element(worker_hosts_)) + 1);
  for (int worker = 0; worker < script.workers; ++worker)
    host(host_of(worker)).workers.push_back(worker);
  for (auto& each_host : hosts_)
    each_host.ended.leavers.resize(static_cast<std::size_t>(script.workers));
  for (int group = 0; group < static_cast<int>(script.groups.size()); ++group) add_group(group);
}

void Hosts::add_group(int group) {
  const auto& ranks = script_.members(group);
  std::vector<int> hosts;
  std::vector<std::vector<int>> members;
  std::vector<MemberPosition> positions;
  for (int member = 0; member < static_cast<int>(ranks.size()); ++member) {
    const int own_host = host_of(ranks[static_cast<std::size_t>(member)]);
    const auto found = std::ranges::find(hosts, own_host) - hosts.begin();
    if (found == std::ssize(hosts)) {
      hosts.push_back(own_host);
      members.emplace_back();
    }
    auto& part = members[static_cast<std::size_t>(found)];
    positions.push_back({static_cast<int>(found), static_cast<int>(part.size())});
    part.push_back(member);
  }
  std::vector<HostPart> parts;
  for (std::size_t part = 0; part < hosts.size(); ++part) {
    const auto size = static_cast<int>(members[part].size());
    parts.push_back({hosts[part], std::move(members[part]), SimulatedBoard(size)});
  }
  parts_.push_back(std::move(parts));
  positions_.push_back(std::move(positions));
}

int Hosts::worker_of_lane_0(int group, int part) const {
  const auto& members = parts(group)[static_cast<std::size_t>(part)].members;
  return script_.members(group)[static_cast<std::size_t>(members.front())];
}

EndedRanks Hosts::ended_in(int group, int part_number) {
  const auto& own_part = part(group, part_number);
  EndedRanks ended = host(own_part.host).ended;
  for (const auto& [rank, ticket] : own_part.leaves) {
    auto& leaver = ended.leavers[static_cast<std::size_t>(rank)];
    if (!leaver || leaver->ticket > ticket) leaver = {.ticket = ticket, .reason = "enough"};
  }
  return ended;
}

std::vector<bool> Hosts::hosts_reached_by(int worker, bool only_lane_0) const {
  std::vector<std::vector<int>> world;
  for (const auto& each_host : hosts_)
    if (!each_host.workers.empty()) world.push_back(each_host.workers);
  const auto& own = hosts_[static_cast<std::size_t>(host_of(worker))].workers;
  const auto index = static_cast<std::size_t>(std::ranges::find(own, worker) - own.begin());
  std::vector<bool> reached(hosts_.size(), index < (only_lane_0 ? 1 : lanes_of(world)));
  for (int group = 0; group < static_cast<int>(parts_.size()); ++group) {
    const auto member = script_.member_of(group, worker);
    if (!member) continue;
    std::vector<std::vector<int>> members;
    for (const auto& part : parts(group)) members.push_back(part.members);
    const auto lanes = only_lane_0 ? 1 : lanes_of(members);
    if (static_cast<std::size_t>(index_of(group, *member)) >= lanes) continue;
    for (const auto& part : parts(group)) reached[static_cast<std::size_t>(part.host)] = true;
  }
  return reached;
}

std::vector<int> Hosts::hosts_connected_to(int worker) const {
  return other_hosts_in(hosts_reached_by(worker, false), host_of(worker));
}

std::vector<int> Hosts::hosts_notified_by(int worker) const {
  return other_hosts_in(hosts_reached_by(worker, true), host_of(worker));
}

}  // namespace farandole::sim
