#include "nodes/roll_call.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <utility>

#include "base/format.h"
#include "base/rank_names.h"
#include "base/visible_text.h"

namespace farandole {

std::string node_list_text(const std::vector<int>& nodes) {
  // Turn "rank 3" or "ranks 0-2" into "node 3" or "nodes 0-2".
  return "node" + ranks_text(nodes).substr(std::string_view("rank").size());
}

std::string waiting_text(const std::vector<int>& missing, int nodes) {
  return format_text("waiting for {} of {}", node_list_text(missing), nodes);
}

RollCall::RollCall(const Hello& own_hello, const std::optional<Replacement>& replaces)
    : nodes_(own_hello.nodes),
      version_(own_hello.version),
      uses_jax_(own_hello.uses_jax),
      is_elastic_(own_hello.is_elastic),
      is_complete_(own_hello.nodes == 1) {
  nodes_.front() = {.is_present = true,
                    .workers = static_cast<int>(own_hello.workers),
                    .host = own_hello.host,
                    .tensorflow_ports = own_hello.tensorflow_ports};
  if (!replaces) return;
  is_complete_ = true;
  expected_.insert(replaces->nodes.begin(), replaces->nodes.end());
  nodes_.resize(replaces->workers.size());
  for (std::size_t node = 1; node < nodes_.size(); ++node)
    nodes_[node].workers = static_cast<int>(replaces->workers[node]);
}

// The flags that change the variables of the workers must be the same on all nodes. Returns the
// text of the rejection if a flag differs.
std::string RollCall::flag_conflict_of(const Hello& hello) const {
  const auto conflict_text = [&](const char* flag, bool own_has_flag,
                                 bool other_has_flag) -> std::string {
    if (own_has_flag == other_has_flag) return {};
    return format_text(
        "node {} on {} was started with {}, but node {} on {} without it; start all nodes with the "
        "same flags",
        own_has_flag ? 0 : hello.node, own_has_flag ? at(0).host : escape_controls(hello.host),
        flag, own_has_flag ? hello.node : 0,
        own_has_flag ? escape_controls(hello.host) : at(0).host);
  };
  const std::string tensorflow = conflict_text("--tf-config", !at(0).tensorflow_ports.empty(),
                                               !hello.tensorflow_ports.empty());
  if (!tensorflow.empty()) return tensorflow;
  if (!hello.tensorflow_ports.empty() && hello.tensorflow_ports.size() != hello.workers)
    return format_text("node {} has {} workers, but {} ports for TensorFlow", hello.node,
                       hello.workers, hello.tensorflow_ports.size());
  const std::string elastic = conflict_text("--min-workers", is_elastic_, hello.is_elastic);
  return elastic.empty() ? conflict_text("--jax", uses_jax_, hello.uses_jax) : elastic;
}

std::string RollCall::rejection_of(const Hello& hello) const {
  // An elastic job gets new nodes one by one.
  const bool is_new =
      is_complete_ && is_elastic_ && hello.node == static_cast<std::uint32_t>(nodes());
  if (!(is_complete_ && is_elastic_) && hello.nodes != static_cast<std::uint32_t>(nodes()))
    return format_text(
        "node 0 was started with --nodes {}, and node {} on {} with --nodes {}; start all nodes "
        "with the same number",
        nodes(), hello.node, escape_controls(hello.host), hello.nodes);
  if (hello.node == 0 || hello.node >= hello.nodes || (!is_new && hello.node >= nodes_.size()))
    return format_text("there is no other node {} in a job of {} nodes", hello.node, nodes());
  const int number = static_cast<int>(hello.node);
  if (hello.has_begun && !expected_.contains(number))
    return format_text("the job has gone on without node {}", number);
  if (is_new) return size_conflict_of(hello);
  if (at(number).is_present)
    return format_text(
        "node {} has already joined, on {} ({}); start each node once, with --node 0 "
        "to --node {}",
        number, at(number).host, at(number).address, nodes() - 1);
  if (is_complete_ && !is_elastic_)
    return format_text("the job runs already; {} cannot join it again", name(number));
  if (is_complete_ && hello.workers != static_cast<std::uint32_t>(at(number).workers))
    return format_text("{} had {} workers, so it can come back with the same number, but not {}",
                       name(number), at(number).workers, hello.workers);
  return is_complete_ ? "" : size_conflict_of(hello);
}

std::string RollCall::version_conflict_of(const Hello& hello) const {
  if (hello.version == version_) return {};
  return format_text(
      "node 0 on {} has version \"{}\" of Farandole, and node {} on {} has version \"{}\"; install "
      "the same version on all hosts",
      at(0).host, version_, hello.node, escape_controls(hello.host),
      escape_controls(hello.version));
}

std::string RollCall::size_conflict_of(const Hello& hello) const {
  const auto workers_of_others = std::accumulate(
      nodes_.begin(), nodes_.end(), std::uint64_t{0}, [](std::uint64_t sum, const Node& node) {
        return sum + static_cast<std::uint64_t>(node.workers);
      });
  if (hello.workers == 0 || workers_of_others + hello.workers > kWorkersMax)
    return format_text(
        "node {} has {} workers; with it, the job would have {}, but it can have 1 "
        "to {}",
        hello.node, hello.workers, workers_of_others + hello.workers, kWorkersMax);
  return {};
}

RollCall::Verdict RollCall::add_launcher(const Hello& hello, const std::string& address) {
  const std::string version_conflict = version_conflict_of(hello);
  const bool has_joined = hello.node < nodes_.size() && at(static_cast<int>(hello.node)).is_present;
  if (!version_conflict.empty()) return {version_conflict, !is_complete_ && !has_joined};
  const std::string rejection = rejection_of(hello);
  if (!rejection.empty())
    return {rejection, !is_complete_ && hello.nodes != static_cast<std::uint32_t>(nodes()),
            is_elastic_ && is_complete_ && hello.node < nodes_.size() &&
                at(static_cast<int>(hello.node)).is_present};
  const std::string flag_conflict = flag_conflict_of(hello);
  if (!flag_conflict.empty()) return {flag_conflict, !is_complete_};
  if (hello.node == nodes_.size()) nodes_.emplace_back();
  at(static_cast<int>(hello.node)) = {.is_present = true,
                                      .workers = static_cast<int>(hello.workers),
                                      .host = escape_controls(hello.host),
                                      .tensorflow_ports = hello.tensorflow_ports,
                                      .address = address};
  expected_.erase(static_cast<int>(hello.node));
  is_complete_ = is_complete_ || std::ranges::all_of(nodes_, &Node::is_present);
  return {};
}

void RollCall::remove_launcher(int node) {
  at(node).is_present = false;
  if (!is_complete_) at(node).workers = 0;
}

void RollCall::record_end(int node, int exit_code) {
  if (!at(node).exit_code) at(node).exit_code = at(node).is_needed ? exit_code : 0;
}

// Node 0 is left out here: it is always needed, because it decides about the group.
void RollCall::group_formed(const std::vector<std::uint32_t>& slots) {
  auto first_slot = static_cast<std::uint32_t>(nodes_.front().workers);
  for (Node& node : nodes_ | std::views::drop(1)) {
    const std::uint32_t end = first_slot + static_cast<std::uint32_t>(node.workers);
    node.is_needed = std::ranges::any_of(
        slots, [&](std::uint32_t slot) { return slot >= first_slot && slot < end; });
    if (!node.is_needed && node.exit_code) node.exit_code = 0;
    first_slot = end;
  }
}

std::vector<int> RollCall::missing_nodes() const {
  std::vector<int> missing;
  for (int node = 0; node < nodes(); ++node)
    if (!at(node).is_present) missing.push_back(node);
  return missing;
}

std::vector<int> RollCall::worker_counts() const {
  std::vector<int> workers;
  for (const Node& node : nodes_) workers.push_back(node.workers);
  return workers;
}

std::vector<std::uint32_t> RollCall::tensorflow_ports() const {
  std::vector<std::uint32_t> ports;
  for (const Node& node : nodes_)
    ports.insert(ports.end(), node.tensorflow_ports.begin(), node.tensorflow_ports.end());
  return ports;
}

std::vector<int> RollCall::running_nodes() const {
  std::vector<int> running;
  for (int node = 0; node < nodes(); ++node)
    if (at(node).is_present && !at(node).exit_code) running.push_back(node);
  return running;
}

std::optional<bool> RollCall::outcome() const {
  if (!is_complete_ || !running_nodes().empty()) return std::nullopt;
  return std::ranges::all_of(nodes_, [this](const Node& node) {
    const bool may_lack = is_elastic_ && !node.is_present && !node.exit_code;
    return may_lack || node.exit_code == 0;
  });
}

std::string RollCall::name(int node) const {
  const std::string& host = at(node).host;
  return "node " + std::to_string(node) + (host.empty() ? "" : " (" + host + ")");
}

}  // namespace farandole
