#include "formation/hosts.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>

#include "base/cores.h"
#include "base/format.h"
#include "base/rank_names.h"

namespace farandole {
namespace {

// Returns the ranks that have joined, by the number of their host.
std::vector<std::vector<int>> ranks_by_host(const std::vector<RankInfo>& ranks) {
  std::vector<std::vector<int>> hosts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].host < 0) continue;
    const auto host = static_cast<std::size_t>(ranks[rank].host);
    hosts.resize(std::max(hosts.size(), host + 1));
    hosts[host].push_back(static_cast<int>(rank));
  }
  return hosts;
}

std::string position_text(const RankTopology& topology) {
  return format_text("local rank {} of {} and cross rank {} of {}", topology.local_rank,
                     topology.local_size, topology.cross_rank, topology.cross_size);
}

}  // namespace

std::vector<int> host_numbers(const std::vector<std::string>& tokens) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const auto& token : tokens)
    hosts.push_back(numbers.emplace(token, static_cast<int>(numbers.size())).first->second);
  return hosts;
}

RankTopology topology_of(int rank, const std::vector<RankInfo>& ranks) {
  const auto hosts = ranks_by_host(ranks);
  const int host = ranks[static_cast<std::size_t>(rank)].host;
  const auto& local_ranks = hosts[static_cast<std::size_t>(host)];
  RankTopology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(ranks.size());
  topology.local_rank =
      static_cast<int>(std::ranges::find(local_ranks, rank) - local_ranks.begin());
  topology.local_size = static_cast<int>(local_ranks.size());
  topology.cross_rank = topology.cross_size = 0;
  for (std::size_t other_host = 0; other_host < hosts.size(); ++other_host) {
    topology.is_homogeneous &= hosts[other_host].size() == local_ranks.size();
    if (hosts[other_host].size() <= static_cast<std::size_t>(topology.local_rank)) continue;
    ++topology.cross_size;
    if (other_host < static_cast<std::size_t>(host)) ++topology.cross_rank;
  }
  return topology;
}

int cores_of_ranks(int host, const std::vector<RankInfo>& ranks) {
  std::set<std::string> core_lists;  // many ranks may have the same list
  for (const RankInfo& rank : ranks)
    if (rank.host == host) core_lists.insert(rank.cores);
  std::set<int> cores;
  for (const auto& list : core_lists)
    for (const int core : numbers_in_list(list)) cores.insert(core);
  return static_cast<int>(cores.size());
}

std::string hosts_text(const std::vector<RankInfo>& ranks) {
  std::vector<std::string> texts;
  for (const auto& local_ranks : ranks_by_host(ranks))
    if (!local_ranks.empty())
      texts.push_back(format_text("{} ({})",
                                  ranks[static_cast<std::size_t>(local_ranks.front())].host_name,
                                  ranks_text(local_ranks)));
  return join_text(texts, ", ");
}

Status check_given_topology(const RankTopology& given, const std::vector<RankInfo>& ranks) {
  const RankTopology actual = topology_of(given.rank, ranks);
  RankTopology expected = given;
  bool differs = false;
  for (const auto field : {&RankTopology::local_rank, &RankTopology::local_size,
                           &RankTopology::cross_rank, &RankTopology::cross_size}) {
    if (expected.*field < 0) expected.*field = actual.*field;
    differs |= expected.*field != actual.*field;
  }
  if (!differs) return {};
  return Status::fix_call(format_text(
      "rank {} was started as {}, but was found to be {}: the ranks that share memory are on {}. "
      "Start the ranks of a host so that they can pass descriptors to each other, in one container "
      "and under one launcher, or unset the variables with the expected numbers "
      "(FARANDOLE_LOCAL_RANK, FARANDOLE_LOCAL_SIZE, FARANDOLE_CROSS_RANK, FARANDOLE_CROSS_SIZE, or "
      "those of the launcher that you use)",
      given.rank, position_text(expected), position_text(actual), hosts_text(ranks)));
}

}  // namespace farandole
