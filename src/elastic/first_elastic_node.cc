#include "elastic/first_elastic_node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/format.h"

namespace farandole {
namespace {

// The number of a worker is never used again. So each launcher of node 0 has its own range of this
// many numbers.
constexpr int kWorkerNumbersPerLauncher = 1 << 20;

std::string workers_text(std::size_t count) {
  return format_text("{} worker{}", count, count == 1 ? "" : "s");
}

}  // namespace

FirstElasticNode::FirstElasticNode(const Membership::Options& options, const NodeLayout& layout,
                                   StoreServer& store, NodeLink* link, TimePoint now,
                                   const std::optional<Replacement>& replacement)
    : layout_(layout),
      link_(link),
      job_(options, store,
           replacement ? static_cast<int>(replacement->number) * kWorkerNumbersPerLauncher : 0) {
  if (replacement) {
    takeover_ =
        Takeover{.epoch = replacement->epoch, .is_first_takeover = replacement->number == 1};
    for (int slot = 0; slot < layout_.size(); ++slot) job_.membership().slot_closed(slot);
    return;
  }
  for (int slot = 0; slot < layout.size(); ++slot) (void)job_.worker_started(slot, now);
}

int FirstElasticNode::node_of(int slot) const {
  int node = 0;
  int end = layout_.workers.front();
  while (slot >= end) end += layout_.workers.at(static_cast<std::size_t>(++node));
  return node;
}

void FirstElasticNode::worker_ended(int local_rank, bool succeeded, const std::string& how_it_ended,
                                    TimePoint now) {
  job_.worker_ended(local_rank, succeeded, how_it_ended, now);
}

void FirstElasticNode::worker_stopped(int local_rank, TimePoint now) {
  job_.worker_stopped(local_rank, now);
}

void FirstElasticNode::worker_continued(int local_rank) { job_.worker_continued(local_rank); }

bool FirstElasticNode::is_needed(int local_rank) const {
  return job_.membership().is_needed(local_rank);
}

bool FirstElasticNode::is_former_member(int local_rank) const {
  return job_.membership().is_former_member(local_rank);
}

void FirstElasticNode::handle_events(const NodeEvents& news, TimePoint now) {
  for (const WorkerExit& exit : news.exits) handle_exit(exit, now);
  for (const NodeMessage& message : news.messages) {
    if (const auto* leaving = std::get_if<NodeLeaves>(&message))
      handle_leaving_node(static_cast<int>(leaving->node));
    if (const auto* state = std::get_if<NodeState>(&message)) handle_node_state(*state, now);
    const auto* stop = std::get_if<WorkerStop>(&message);
    if (stop == nullptr || stop->slot >= static_cast<std::uint32_t>(layout_.size())) continue;
    const int slot = static_cast<int>(stop->slot);
    if (stop->is_stopped)
      job_.worker_stopped(slot, now);
    else
      job_.worker_continued(slot);
  }
  for (const NodeChange& change : news.changes) handle_node_change(change, now);
  if (!takeover_) return;
  takeover_->no_more_nodes_expected =
      takeover_->no_more_nodes_expected || news.no_more_nodes_expected;
  if (takeover_->no_more_nodes_expected && takeover_->nodes_without_state.empty()) take_over(now);
}

void FirstElasticNode::handle_exit(const WorkerExit& exit, TimePoint now) {
  if (exit.rank >= static_cast<std::uint32_t>(layout_.size())) return;
  const int slot = static_cast<int>(exit.rank);
  if (!is_local_slot(slot) && job_.has_running_worker(slot))
    job_.worker_ended(slot, exit.succeeded, exit.how_it_ended, now);
}

// A lost node gets no orders. If its launcher still runs, the launcher ends the workers without an
// order.
void FirstElasticNode::handle_node_change(const NodeChange& change, TimePoint now) {
  const bool is_new = change.node >= layout_.nodes();
  if (is_new) add_nodes();
  for (const int slot : slots_of(change.node)) {
    if (change.is_present) {
      job_.membership().slot_opened(slot);
      continue;
    }
    job_.membership().slot_closed(slot);
    if (!job_.has_running_worker(slot)) continue;
    const std::string how_it_ended =
        format_text("worker {} is lost with node {}", slot, change.node);
    if (job_.membership().is_member(slot)) {
      lost_member_text_ = how_it_ended;
      announce_lost_member(job_.membership().epoch(), slot);
    }
    job_.worker_ended(slot, false, how_it_ended, now);
  }
  const bool was_leaving = leaving_nodes_.erase(change.node) > 0;
  if (takeover_) {
    takeover_->nodes_without_state.erase(change.node);
    takeover_->nodes_with_state.erase(change.node);
    if (change.has_begun) takeover_->nodes_without_state.insert(change.node);
    return;
  }
  if (!change.is_present)
    notices_.push_back(was_leaving ? format_text("node {} has left", change.node) : change.why);
  else if (has_sent_no_more_workers_)
    link_->tell_node(change.node, NoMoreWorkers());
  else
    notices_.push_back(format_text("node {} takes part{}", change.node, is_new ? "" : " again"));
}

// The lost member may still run, for example if its host was only stopped. Then the other members
// learn about the loss only from this message.
void FirstElasticNode::announce_lost_member(const Epoch& epoch, int slot) {
  const auto rank = std::ranges::find(epoch.workers, slot) - epoch.workers.begin();
  lost_member_ =
      MemberLost{static_cast<std::uint32_t>(epoch.number), static_cast<std::uint32_t>(rank)};
  if (link_ != nullptr) link_->tell(*lost_member_);
}

// After this call, this launcher knows the workers of the node that has sent its state, and handles
// their events.
void FirstElasticNode::handle_node_state(const NodeState& state, TimePoint now) {
  const int node = static_cast<int>(state.node);
  if (!takeover_ || takeover_->nodes_without_state.erase(node) == 0) return;
  takeover_->nodes_with_state.insert(node);
  if (state.group.epoch >= takeover_->last_group.epoch) takeover_->last_group = state.group;
  const std::vector<int> slots_of_node = slots_of(node);
  for (std::size_t i = 0; i < std::min(state.slots.size(), state.numbers.size()); ++i) {
    const int slot = static_cast<int>(state.slots[i]);
    if (std::ranges::find(slots_of_node, slot) == slots_of_node.end() ||
        job_.has_running_worker(slot))
      continue;
    job_.worker_found(slot, static_cast<int>(state.numbers[i]), now);
    if (std::ranges::find(state.group.numbers, state.numbers[i]) != state.group.numbers.end())
      takeover_->group_epochs_by_slot[slot] = state.group.epoch;
    if (std::ranges::find(state.stopped_slots, state.slots[i]) != state.stopped_slots.end())
      job_.worker_stopped(slot, now);
  }
  if (state.is_finishing) job_.membership().finish();
  if (state.is_leaving) handle_leaving_node(node);
}

void FirstElasticNode::take_over(TimePoint now) {
  const Takeover takeover = *std::exchange(takeover_, std::nullopt);
  const GroupFormed& last_group = takeover.last_group;
  Membership::RecoveredJob recovered_job{
      .last_epoch = {.number = last_group.epoch,
                     .workers = {last_group.slots.begin(), last_group.slots.end()}},
      .state_epoch = last_group.state_epoch,
      .newest_epoch = takeover.epoch,
      .lost_launcher_was_first = takeover.is_first_takeover};
  for (int slot = 0; slot < layout_.size(); ++slot) {
    const auto number = static_cast<std::uint32_t>(job_.number_of(slot));
    const bool was_in_last_group =
        std::ranges::find(last_group.numbers, number) != last_group.numbers.end();
    if (job_.has_running_worker(slot) && was_in_last_group)
      recovered_job.running_members.push_back(slot);
  }
  for (const auto& [slot, epoch] : takeover.group_epochs_by_slot)
    if (epoch < last_group.epoch) recovered_job.members_of_older_groups.push_back(slot);
  // If no node has reported that a member runs, the member is lost, either alone or with its node.
  for (const int slot : recovered_job.last_epoch.workers) {
    if (std::ranges::find(recovered_job.running_members, slot) !=
        recovered_job.running_members.end())
      continue;
    announce_lost_member(recovered_job.last_epoch, slot);
    // If the node of the member is connected, it reports how the member ended.
    const bool node_is_connected =
        slot < layout_.size() && takeover.nodes_with_state.contains(node_of(slot));
    if (!node_is_connected)
      lost_member_text_ = format_text("worker {} is lost with its node", slot);
  }
  job_.membership().continue_from(recovered_job, now);
  notices_.push_back(format_text("node 0 has a new launcher, which has found {} of the last group",
                                 workers_text(recovered_job.running_members.size())));
}

void FirstElasticNode::add_nodes() {
  const std::vector<std::uint32_t>& workers = link_->start_message()->workers;
  while (layout_.workers.size() < workers.size()) {
    layout_.workers.push_back(static_cast<int>(workers[layout_.workers.size()]));
    job_.add_slots(layout_.workers.back());
  }
}

void FirstElasticNode::handle_leaving_node(int node) {
  if (node < 1 || node >= layout_.nodes() || !leaving_nodes_.insert(node).second) return;
  notices_.push_back(format_text("node {} leaves at the next commit", node));
  for (const int slot : slots_of(node)) job_.membership().slot_leaves(slot);
}

std::vector<int> FirstElasticNode::slots_of(int node) const {
  NodeLayout layout_of_node = layout_;
  layout_of_node.node = node;
  std::vector<int> slots;
  for (int local_rank = 0; local_rank < layout_of_node.local_size(); ++local_rank)
    slots.push_back(layout_of_node.rank_of(local_rank));
  return slots;
}

ElasticOrders FirstElasticNode::advance(TimePoint now) {
  if (takeover_) return {};
  const Membership::Decisions decisions = job_.advance(now);
  ElasticOrders orders{.notices = std::exchange(notices_, {}),
                       .lost_member = std::exchange(lost_member_, {}),
                       .end = decisions.end_reason};
  if (decisions.new_epoch) {
    orders.group_formed = true;
    lost_member_text_.clear();
    if (decisions.new_epoch->number > 1)
      orders.notices.push_back("the job goes on with " +
                               workers_text(decisions.new_epoch->workers.size()));
    announce_group();
  }
  if (is_over() && !lost_member_text_.empty() && orders.end.empty())
    orders.end = lost_member_text_ + ", and no group was formed without it";
  for (const int slot : decisions.slots_to_start) order_start(slot, orders, now);
  if (!decisions.late_workers.empty()) {
    std::vector<std::string> names;
    for (const int slot : decisions.late_workers) names.push_back(format_text("worker {}", slot));
    orders.notices.push_back(
        format_text("the other workers wait in init() for {}; `farandole status` shows what {}",
                    join_text(names, ", "), names.size() == 1 ? "it does" : "they do"));
  }
  for (const int slot : decisions.stopped_workers) {
    orders.notices.push_back(format_text("worker {} is still stopped; killing it", slot));
    order_kill(slot, false, orders);
  }
  for (const int slot : decisions.superfluous_workers) order_kill(slot, true, orders);
  if (job_.membership().is_finishing() && link_ != nullptr &&
      !std::exchange(has_sent_no_more_workers_, true))
    link_->tell(NoMoreWorkers());
  return orders;
}

void FirstElasticNode::announce_group() const {
  if (link_ == nullptr) return;
  const Epoch& epoch = job_.membership().epoch();
  GroupFormed group_formed{
      .epoch = static_cast<std::uint32_t>(epoch.number),
      .slots = {},
      .numbers = {},
      .state_epoch = static_cast<std::uint32_t>(job_.membership().state_epoch())};
  for (const int slot : epoch.workers) {
    group_formed.slots.push_back(static_cast<std::uint32_t>(slot));
    group_formed.numbers.push_back(static_cast<std::uint32_t>(job_.number_of(slot)));
  }
  link_->tell(group_formed);
}

void FirstElasticNode::order_start(int slot, ElasticOrders& orders, TimePoint now) {
  const int number = job_.worker_started(slot, now);
  if (is_local_slot(slot))
    orders.starts.push_back({.local_rank = slot, .number = number});
  else
    link_->tell_node(node_of(slot), WorkerStart{static_cast<std::uint32_t>(slot),
                                                static_cast<std::uint32_t>(number)});
}

void FirstElasticNode::order_kill(int slot, bool is_former_member, ElasticOrders& orders) const {
  if (is_local_slot(slot))
    orders.kills.push_back(slot);
  else
    link_->tell_node(node_of(slot), WorkerKill{static_cast<std::uint32_t>(job_.number_of(slot)),
                                               is_former_member});
}

}  // namespace farandole
