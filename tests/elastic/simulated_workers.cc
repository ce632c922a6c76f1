// The workers of a simulated job, and the rules that the job must follow.
#include <gtest/gtest.h>

#include <algorithm>

#include "rendezvous/keys.h"
#include "simulated_job.h"

namespace farandole {
namespace {

std::string failure_key(std::int64_t epoch) {
  return keys::epoch_prefix(epoch) + keys::complete(keys::kFirstEpoch);
}

}  // namespace

void SimulatedJob::for_all_processes(const std::function<void(Process&)>& visit) {
  for (const auto& node : nodes_)
    for (auto& [local_rank, process] : node->processes) visit(process);
  for (const auto& node : superseded_launchers_)
    for (auto& [local_rank, process] : node->processes) visit(process);
}

// Whether the process can reach the current Store of node 0.
bool SimulatedJob::can_reach_store(const Process& process) const {
  return first_node_ && network_.connects(process.node, 0);
}

void SimulatedJob::step_process(Process& process) {
  switch (process.state) {
    case Process::State::kLoading:
      return ask_for_rank(process);
    case Process::State::kAsking:
      return process.store_number == launchers_lost_ ? take_rank(process) : ask_for_rank(process);
    case Process::State::kForming:
      return advance_formation(process);
    case Process::State::kRunning:
      return train(process);
  }
}

// A request reaches node 0 even if the network is cut in the opposite direction.
void SimulatedJob::ask_for_rank(Process& process) {
  process.state = Process::State::kAsking;
  process.store_number = -1;  // the process asks again in its next step
  if (!first_node_ || !network_.is_open(process.node, 0)) return;
  process.store_number = launchers_lost_;
  const keys::RankRequest request{.left_epoch = process.epoch,
                                  .state_epoch = process.state_epoch,
                                  .knows_state = process.knows_state};
  // An error means that node 0 has not read the last request yet.
  (void)job_store().set(keys::rank_wanted(process.number), request.encode());
}

void SimulatedJob::take_rank(Process& process) {
  if (!can_reach_store(process)) return;
  const std::string answer = keys::rank_given(process.number, process.epoch);
  const auto bytes = job_store().bytes_at(answer);
  if (!bytes) return;
  job_store().remove(answer);
  const keys::RankRecord record = keys::RankRecord::decode(*bytes).value();
  ASSERT_EQ(first_node_->slots_by_rank().at(static_cast<std::size_t>(record.rank)), process.slot);
  ASSERT_EQ(record.epoch, epoch_);
  process.epoch = record.epoch;
  process.rank = record.rank;
  process.knows_state = process.knows_state || record.has_state;
  process.state = Process::State::kForming;
  process.waits_for_local_ranks = happens_one_in(2);
}

void SimulatedJob::fail_formation(Process& process) {
  ++counts_.failed_formations;
  if (process.node > 0)
    (void)process.home_node->store->set(failure_key(process.epoch), keys::text_value("failed"));
  if (can_reach_store(process))
    (void)job_store().set(failure_key(process.epoch), keys::text_value("failed"));
  ask_for_rank(process);
}

// Returns the running members of this epoch, on all nodes. Members that have left the epoch do not
// count.
std::vector<SimulatedProcess*> SimulatedJob::members_of(std::int64_t epoch) {
  std::vector<Process*> members;
  for_all_processes([&](Process& process) {
    if (process.epoch == epoch && process.state >= Process::State::kForming)
      members.push_back(&process);
  });
  return members;
}

// Whether any two members do not reach each other.
bool SimulatedJob::any_member_is_cut_off(const std::vector<Process*>& members) const {
  for (const Process* member : members)
    for (const Process* other_member : members)
      if (member->node < other_member->node && !network_.connects(member->node, other_member->node))
        return true;
  return false;
}

void SimulatedJob::advance_formation(Process& process) {
  const auto members = members_of(process.epoch);
  // First, the process waits for all members in the Store of the job, which may be lost.
  const bool all_have_come = static_cast<int>(members.size()) == group_sizes_.at(process.epoch);
  if (process.store_number != launchers_lost_ && (!process.waits_for_local_ranks || !all_have_come))
    return fail_formation(process);
  if (process.waits_for_local_ranks) {
    if (process.home_node->store && process.home_node->store->text_at(failure_key(process.epoch)))
      return fail_formation(process);
    // Then the process waits for the other members on its node.
    const auto local_members_arrived =
        std::ranges::count(members, process.node, [](const Process* one) { return one->node; });
    if (local_members_arrived < local_sizes_.at({process.epoch, process.node})) return;
    process.waits_for_local_ranks = false;
  }
  if (can_reach_store(process) && job_store().text_at(failure_key(process.epoch)))
    return fail_formation(process);
  if (any_member_is_cut_off(members)) return happens_one_in(10) ? fail_formation(process) : void();
  if (!all_have_come || std::ranges::any_of(members, &Process::waits_for_local_ranks)) return;
  for (Process* member : members) member->state = Process::State::kRunning;
}

// A call fails if a member has ended, or after a while if members do not reach each other. At a
// commit, all members leave the group together if rank 0 sees an announced change.
void SimulatedJob::train(Process& process) {
  const auto members = members_of(process.epoch);
  if (static_cast<int>(members.size()) < group_sizes_.at(process.epoch))
    return ask_for_rank(process);
  const bool has_frozen_member = std::ranges::any_of(
      members, [this](const Process* member) { return is_frozen(*member->home_node); });
  if (process.home_node->lost_epoch == process.epoch) {
    counts_.groups_with_frozen_members += has_frozen_member ? 1 : 0;
    return ask_for_rank(process);
  }
  if (has_frozen_member) return;
  if (any_member_is_cut_off(members)) {
    if (!happens_one_in(10)) return;
    counts_.calls_failed_by_cuts += std::ranges::all_of(
        members, [this](const Process* member) { return can_reach_store(*member); });
    return ask_for_rank(process);
  }
  if (process.rank != 0 || std::ranges::any_of(members, &Process::is_stopped)) return;
  ASSERT_EQ(process.steps_done, steps_done_) << "steps are lost";
  ++steps_done_;
  for (Process* member : members) {
    member->state_epoch = member->epoch;  // rank 0 has sent the state
    member->steps_done = steps_done_;
  }
  const auto announced_key = keys::epoch_prefix(process.epoch) + keys::change_announced();
  const bool has_lost_store = !first_node_ || process.store_number != launchers_lost_;
  if (!has_lost_store &&
      (!can_reach_store(process) || !job_store().has_key_with_prefix(announced_key)))
    return;
  for (Process* member : members) ask_for_rank(*member);
}

void SimulatedJob::check_new_group() {
  const std::vector<int>& slots = first_node_->slots_by_rank();
  ASSERT_EQ(std::set<int>(slots.begin(), slots.end()).size(), slots.size());
  ASSERT_GE(static_cast<int>(slots.size()), options_.workers_min);
  if (prints_events_) {
    std::string text = "group " + std::to_string(epoch_) + ":";
    for (const int slot : slots) text += " " + std::to_string(slot);
    print_event(text);
  }
  group_sizes_[epoch_] = static_cast<int>(slots.size());
  std::optional<bool> rank_0_has_state;  // empty: the worker with rank 0 has just ended
  bool any_worker_has_state = false;
  bool all_are_here = true;
  for (int node = 0; node < static_cast<int>(workers_of_nodes_.size()); ++node) {
    const int first_slot_of_node = first_slot(node);
    local_sizes_[{epoch_, node}] = static_cast<int>(std::ranges::count_if(slots, [&](int slot) {
      return slot >= first_slot_of_node &&
             slot < first_slot_of_node + workers_of_nodes_[static_cast<std::size_t>(node)];
    }));
    const bool is_present = node == 0 || connected_nodes_.contains(node);
    all_are_here = all_are_here && is_present;
    if (!is_present) continue;
    for (const auto& [local_rank, process] : node_at(node).processes) {
      ASSERT_NE(process.state, Process::State::kRunning)
          << "worker " << process.number << " in slot " << process.slot
          << " still trains in its old group " << process.epoch;
      // A group cannot be completed without the Store in which it began to form.
      ASSERT_TRUE(process.state != Process::State::kForming ||
                  process.store_number != launchers_lost_)
          << "a worker still forms its old group";
      any_worker_has_state = any_worker_has_state || process.state_epoch > 0;
      if (slots[0] == process.slot) rank_0_has_state = process.state_epoch > 0;
    }
  }
  ASSERT_TRUE(epoch_ == 1 || !all_are_here ||
              rank_0_has_state.value_or(any_worker_has_state) == any_worker_has_state);
}

// Checks that at most one group trains, among the workers that run as far as node 0 knows.
void SimulatedJob::check_training_groups() {
  std::set<std::int64_t> training_epochs;
  for (int node = 0; node < node_count(); ++node)
    for (const auto& [local_rank, process] : node_at(node).processes)
      if (process.state == Process::State::kRunning &&
          (node == 0 || connected_nodes_.contains(node)))
        training_epochs.insert(process.epoch);
  ASSERT_LE(training_epochs.size(), 1U) << "two groups train at once";
}

// Checks that the job was right to end. A job that has begun may only end if no worker that node 0
// can reach has the newest state. Workers that have left the group with their nodes do not count.
// In one case, node 0 cannot know which state is the newest: its launcher was replaced twice, and
// no node knows the last groups. In this case, the first of the two replacements may have continued
// the training without the nodes that are left.
void SimulatedJob::check_end(const std::string& reason) {
  print_event("the job ends: " + reason);
  for (int node = 0; node < node_count() && steps_done_ > 0; ++node) {
    if (node > 0 && !connected_nodes_.contains(node)) continue;
    for (const auto& [local_rank, process] : node_at(node).processes) {
      const bool may_have_left = node_at(node).is_leaving && process.epoch < epoch_;
      if (process.steps_done != steps_done_ || !can_reach_store(process) || may_have_left) continue;
      const bool newest_groups_are_unknown =
          launchers_lost_ > 0 && newest_known_group_ < epoch_ && first_node_->epoch() >= epoch_;
      const bool is_in_doubt = newest_groups_are_unknown && launchers_lost_ > 1;
      counts_.ends_in_doubt += is_in_doubt ? 1 : 0;
      ASSERT_TRUE(is_in_doubt) << reason << ", but worker " << process.number << " in slot "
                               << process.slot << " has the newest state";
    }
  }
}

bool SimulatedJob::all_workers_run() const {
  if (is_taking_over() || !network_.is_healthy() || !hosts_to_restore_.empty()) return false;
  int running_workers = 0;
  int slots = workers_of_nodes_.front();
  for (int number = 0; number < node_count(); ++number) {
    const Node& node = node_at(number);
    if (is_frozen(node)) return false;
    for (const auto& [local_rank, process] : node.processes)
      running_workers +=
          process.state == Process::State::kRunning && process.epoch == epoch_ ? 1 : 0;
    if (number == 0) continue;
    if (!driver_ && (!connected_nodes_.contains(number) || node.is_leaving)) return false;
    if (connected_nodes_.contains(number)) slots += node.slots;
  }
  return running_workers == std::min(slots, options_.workers_max) &&
         running_workers == static_cast<int>(first_node_->slots_by_rank().size()) &&
         (!driver_ || (messages_to_driver_.empty() && driver_->is_settled()));
}

}  // namespace farandole
