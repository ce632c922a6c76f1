// The workers of a simulated job, and the rules that it must keep.
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
  for (const auto& node : old_launchers_)
    for (auto& [local_rank, process] : node->processes) visit(process);
}

// Whether it can reach the Store that node 0 has now.
bool SimulatedJob::can_reach_store(const Process& process) const {
  return first_ && network_.connects(process.node, 0);
}

void SimulatedJob::step_of(Process& process) {
  switch (process.state) {
    case Process::State::kLoading:
      return ask(process);
    case Process::State::kAsking:
      return process.store == stores_ ? take_rank(process) : ask(process);
    case Process::State::kForming:
      return form(process);
    case Process::State::kRunning:
      return train(process);
  }
}

// A request reaches node 0 even if the answer could not come back now.
void SimulatedJob::ask(Process& process) {
  process.state = Process::State::kAsking;
  process.store = -1;  // it tries again
  if (!first_ || !network_.is_open(process.node, 0)) return;
  process.store = stores_;
  const keys::RankRequest request{.left = process.epoch,
                                  .state_epoch = process.state_epoch,
                                  .knows_state = process.knows_state};
  // An error means that its last request was not read yet.
  (void)job_store().set(keys::rank_wanted(process.number), request.encode());
}

void SimulatedJob::take_rank(Process& process) {
  if (!can_reach_store(process)) return;
  const std::string answer = keys::rank_given(process.number, process.epoch);
  const auto bytes = job_store().bytes_at(answer);
  if (!bytes) return;
  job_store().remove(answer);
  const keys::RankRecord record = keys::RankRecord::decode(*bytes).value();
  ASSERT_EQ(first_->slots_by_rank().at(static_cast<std::size_t>(record.rank)), process.slot);
  ASSERT_EQ(record.epoch, epoch_);
  process.epoch = record.epoch;
  process.rank = record.rank;
  process.knows_state = process.knows_state || record.has_state;
  process.state = Process::State::kForming;
  process.waits_for_local_ranks = one_in(2);
}

void SimulatedJob::fail_formation(Process& process) {
  ++counts_.failed_formations;
  if (process.node > 0)
    (void)process.home->store->set(failure_key(process.epoch), keys::text_value("failed"));
  if (can_reach_store(process))
    (void)job_store().set(failure_key(process.epoch), keys::text_value("failed"));
  ask(process);
}

// Returns the members of this epoch that run and have not left it, wherever they are.
std::vector<SimulatedProcess*> SimulatedJob::members_of(std::int64_t epoch) {
  std::vector<Process*> members;
  for_all_processes([&](Process& process) {
    if (process.epoch == epoch && process.state >= Process::State::kForming)
      members.push_back(&process);
  });
  return members;
}

// Whether some of them do not reach each other.
bool SimulatedJob::are_cut(const std::vector<Process*>& members) const {
  for (const Process* one : members)
    for (const Process* other : members)
      if (one->node < other->node && !network_.connects(one->node, other->node)) return true;
  return false;
}

void SimulatedJob::form(Process& process) {
  const auto members = members_of(process.epoch);
  // First it waits for all members in the Store of the job, which may be lost.
  const bool all_have_come = static_cast<int>(members.size()) == sizes_.at(process.epoch);
  if (process.store != stores_ && (!process.waits_for_local_ranks || !all_have_come))
    return fail_formation(process);
  if (process.waits_for_local_ranks) {
    if (process.home->store && process.home->store->text_at(failure_key(process.epoch)))
      return fail_formation(process);
    // It waits for the ranks that its node has in this epoch.
    const auto local =
        std::ranges::count(members, process.node, [](const Process* one) { return one->node; });
    if (local < local_sizes_.at({process.epoch, process.node})) return;
    process.waits_for_local_ranks = false;
  }
  if (can_reach_store(process) && job_store().text_at(failure_key(process.epoch)))
    return fail_formation(process);
  if (are_cut(members)) return one_in(10) ? fail_formation(process) : void();
  if (!all_have_come || std::ranges::any_of(members, &Process::waits_for_local_ranks)) return;
  for (Process* member : members) member->state = Process::State::kRunning;
}

// A call fails if a member has ended, or, after a while, if members do not reach each other. At a
// commit, all members leave the group together if rank 0 sees that a change is announced.
void SimulatedJob::train(Process& process) {
  const auto members = members_of(process.epoch);
  if (static_cast<int>(members.size()) < sizes_.at(process.epoch)) return ask(process);
  const bool has_frozen = std::ranges::any_of(
      members, [this](const Process* member) { return is_frozen(*member->home); });
  if (process.home->lost_epoch == process.epoch) {
    counts_.groups_with_frozen_members += has_frozen ? 1 : 0;
    return ask(process);
  }
  if (has_frozen) return;
  if (are_cut(members)) {
    if (!one_in(10)) return;
    counts_.calls_failed_by_cuts += std::ranges::all_of(
        members, [this](const Process* member) { return can_reach_store(*member); });
    return ask(process);
  }
  if (process.rank != 0 || std::ranges::any_of(members, &Process::is_stopped)) return;
  ASSERT_EQ(process.progress, progress_) << "steps are lost";
  ++progress_;
  for (Process* member : members) {
    member->state_epoch = member->epoch;  // rank 0 has sent the state
    member->progress = progress_;
  }
  const auto announced = keys::epoch_prefix(process.epoch) + keys::change_announced();
  const bool has_lost_store = !first_ || process.store != stores_;
  if (!has_lost_store && (!can_reach_store(process) || !job_store().has_key_under(announced)))
    return;
  for (Process* member : members) ask(*member);
}

void SimulatedJob::check_new_group() {
  const std::vector<int>& slots = first_->slots_by_rank();
  ASSERT_EQ(std::set<int>(slots.begin(), slots.end()).size(), slots.size());
  ASSERT_GE(static_cast<int>(slots.size()), options_.workers_min);
  if (tells_) {
    std::string text = "group " + std::to_string(epoch_) + ":";
    for (const int slot : slots) text += " " + std::to_string(slot);
    tell(text);
  }
  sizes_[epoch_] = static_cast<int>(slots.size());
  std::optional<bool> rank_0_has_state;  // empty: it has just ended
  bool somebody_has_state = false;
  bool all_are_here = true;
  for (int node = 0; node < static_cast<int>(roll_.size()); ++node) {
    const int first = first_slot(node);
    local_sizes_[{epoch_, node}] = static_cast<int>(std::ranges::count_if(slots, [&](int slot) {
      return slot >= first && slot < first + roll_[static_cast<std::size_t>(node)];
    }));
    const bool is_here = node == 0 || here_.contains(node);
    all_are_here = all_are_here && is_here;
    if (!is_here) continue;
    for (const auto& [local_rank, process] : at(node).processes) {
      ASSERT_NE(process.state, Process::State::kRunning)
          << "the fence: worker " << process.number << " in slot " << process.slot
          << " is in its old group " << process.epoch;
      // Without the Store, no group can be completed.
      ASSERT_TRUE(process.state != Process::State::kForming || process.store != stores_)
          << "the fence: it forms its old group";
      somebody_has_state = somebody_has_state || process.state_epoch > 0;
      if (slots[0] == process.slot) rank_0_has_state = process.state_epoch > 0;
    }
  }
  ASSERT_TRUE(epoch_ == 1 || !all_are_here ||
              rank_0_has_state.value_or(somebody_has_state) == somebody_has_state);
}

// Of the workers that node 0 believes to run, only one group trains.
void SimulatedJob::check() {
  std::set<std::int64_t> training;
  for (int node = 0; node < count(); ++node)
    for (const auto& [local_rank, process] : at(node).processes)
      if (process.state == Process::State::kRunning && (node == 0 || here_.contains(node)))
        training.insert(process.epoch);
  ASSERT_LE(training.size(), 1U) << "two groups train at once";
}

// A job that has begun ends only if no worker that node 0 can reach has the newest state, apart
// from those that have left the group with their nodes. There is a doubt that nobody can remove if
// node 0's launcher was replaced twice, and no node knows the last groups: the first replacement
// may have gone on without this node.
void SimulatedJob::check_end(const std::string& why) {
  tell("the job ends: " + why);
  for (int node = 0; node < count() && progress_ > 0; ++node) {
    if (node > 0 && !here_.contains(node)) continue;
    for (const auto& [local_rank, process] : at(node).processes) {
      const bool may_have_left = at(node).is_leaving && process.epoch < epoch_;
      if (process.progress != progress_ || !can_reach_store(process) || may_have_left) continue;
      const bool knows_less = stores_ > 0 && known_group_ < epoch_ && first_->epoch() >= epoch_;
      const bool is_in_doubt = knows_less && stores_ > 1;
      counts_.ends_in_doubt += is_in_doubt ? 1 : 0;
      ASSERT_TRUE(is_in_doubt) << why << ", but worker " << process.number << " in slot "
                               << process.slot << " has the newest state";
    }
  }
}

bool SimulatedJob::everybody_runs() const {
  if (is_taking_over() || !network_.is_healthy() || !listed_later_.empty()) return false;
  int running = 0;
  int slots = roll_.front();
  for (int number = 0; number < count(); ++number) {
    const Node& node = at(number);
    if (is_frozen(node)) return false;
    for (const auto& [local_rank, process] : node.processes)
      running += process.state == Process::State::kRunning && process.epoch == epoch_ ? 1 : 0;
    if (number == 0) continue;
    if (!driver_ && (!here_.contains(number) || node.is_leaving)) return false;
    if (here_.contains(number)) slots += node.slots;
  }
  return running == std::min(slots, options_.workers_max) &&
         running == static_cast<int>(first_->slots_by_rank().size()) &&
         (!driver_ || (lines_.empty() && driver_->is_settled()));
}

}  // namespace farandole
