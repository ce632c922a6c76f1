#include "elastic/first_elastic_node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/format.h"

namespace farandole {
namespace {

// The numbers of workers are never used again, also not by a launcher that takes over.
constexpr int kNumbersOfOneLauncher = 1 << 20;

std::string workers_text(std::size_t count) {
  return format_text("{} worker{}", count, count == 1 ? "" : "s");
}

}  // namespace

FirstElasticNode::FirstElasticNode(const Membership::Options& options, const NodeLayout& layout,
                                   StoreServer& store, NodeLink* link, TimePoint now,
                                   const std::optional<Replacement>& replaces)
    : layout_(layout),
      link_(link),
      job_(options, store,
           replaces ? static_cast<int>(replaces->number) * kNumbersOfOneLauncher : 0) {
  if (replaces) {
    taking_over_ = TakeOver{.epoch = replaces->epoch, .is_first = replaces->number == 1};
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

void FirstElasticNode::worker_ended(int local_rank, bool succeeded, const std::string& how,
                                    TimePoint now) {
  job_.worker_ended(local_rank, succeeded, how, now);
}

void FirstElasticNode::worker_stopped(int local_rank, TimePoint now) {
  job_.worker_stopped(local_rank, now);
}

void FirstElasticNode::worker_continued(int local_rank) { job_.worker_continued(local_rank); }

bool FirstElasticNode::matters(int local_rank) const {
  return job_.membership().matters(local_rank);
}

bool FirstElasticNode::is_superfluous(int local_rank) const {
  return job_.membership().is_superfluous(local_rank);
}

void FirstElasticNode::take_news(const NodeNews& news, TimePoint now) {
  for (const WorkerExit& exit : news.exits) take_exit(exit, now);
  for (const NodeMessage& message : news.messages) {
    if (const auto* leaving = std::get_if<NodeLeaves>(&message))
      node_leaves(static_cast<int>(leaving->node));
    if (const auto* state = std::get_if<NodeState>(&message)) take_state(*state, now);
    const auto* stop = std::get_if<WorkerStop>(&message);
    if (stop == nullptr || stop->slot >= static_cast<std::uint32_t>(layout_.size())) continue;
    const int slot = static_cast<int>(stop->slot);
    if (stop->is_stopped)
      job_.worker_stopped(slot, now);
    else
      job_.worker_continued(slot);
  }
  for (const NodeChange& change : news.changes) take_change(change, now);
  if (!taking_over_) return;
  taking_over_->nobody_is_expected = taking_over_->nobody_is_expected || news.nobody_is_expected;
  if (taking_over_->nobody_is_expected && taking_over_->nodes_to_tell.empty()) take_over(now);
}

void FirstElasticNode::take_exit(const WorkerExit& exit, TimePoint now) {
  if (exit.rank >= static_cast<std::uint32_t>(layout_.size())) return;
  const int slot = static_cast<int>(exit.rank);
  if (!is_own(slot) && job_.runs(slot)) job_.worker_ended(slot, exit.succeeded, exit.how, now);
}

// The launcher of a node that has left ends its workers, if it still can.
void FirstElasticNode::take_change(const NodeChange& change, TimePoint now) {
  const bool is_new = change.node >= layout_.nodes();
  if (is_new) add_nodes();
  for (const int slot : slots_of(change.node)) {
    if (change.is_here) {
      job_.membership().slot_opened(slot);
      continue;
    }
    job_.membership().slot_closed(slot);
    if (!job_.runs(slot)) continue;
    const std::string how = format_text("worker {} is lost with node {}", slot, change.node);
    if (job_.membership().is_member(slot)) {
      last_loss_text_ = how;
      tell_loss(job_.membership().epoch(), slot);
    }
    job_.worker_ended(slot, false, how, now);
  }
  const bool was_leaving = leaving_.erase(change.node) > 0;
  if (taking_over_) {
    taking_over_->nodes_to_tell.erase(change.node);
    taking_over_->nodes_known.erase(change.node);
    if (change.has_begun) taking_over_->nodes_to_tell.insert(change.node);
    return;
  }
  if (!change.is_here)
    notices_.push_back(was_leaving ? format_text("node {} has left", change.node) : change.why);
  else if (told_no_more_)
    link_->tell_node(change.node, NoMoreWorkers());
  else
    notices_.push_back(format_text("node {} takes part{}", change.node, is_new ? "" : " again"));
}

// The other members may not notice it, because the member may only be stopped with its host.
void FirstElasticNode::tell_loss(const Epoch& epoch, int slot) {
  const auto rank = std::ranges::find(epoch.workers, slot) - epoch.workers.begin();
  lost_member_ =
      MemberLost{static_cast<std::uint32_t>(epoch.number), static_cast<std::uint32_t>(rank)};
  if (link_ != nullptr) link_->tell(*lost_member_);
}

// From then on, the events of these workers are those of other workers.
void FirstElasticNode::take_state(const NodeState& state, TimePoint now) {
  const int node = static_cast<int>(state.node);
  if (!taking_over_ || taking_over_->nodes_to_tell.erase(node) == 0) return;
  taking_over_->nodes_known.insert(node);
  if (state.group.epoch >= taking_over_->last.epoch) taking_over_->last = state.group;
  const std::vector<int> own = slots_of(node);
  for (std::size_t i = 0; i < std::min(state.slots.size(), state.numbers.size()); ++i) {
    const int slot = static_cast<int>(state.slots[i]);
    if (std::ranges::find(own, slot) == own.end() || job_.runs(slot)) continue;
    job_.worker_found(slot, static_cast<int>(state.numbers[i]), now);
    if (std::ranges::find(state.group.numbers, state.numbers[i]) != state.group.numbers.end())
      taking_over_->epochs[slot] = state.group.epoch;
    if (std::ranges::find(state.stopped_slots, state.slots[i]) != state.stopped_slots.end())
      job_.worker_stopped(slot, now);
  }
  if (state.is_finishing) job_.membership().finish();
  if (state.is_leaving) node_leaves(node);
}

void FirstElasticNode::take_over(TimePoint now) {
  const TakeOver known = *std::exchange(taking_over_, std::nullopt);
  const GroupFormed& last = known.last;
  Membership::Past past{
      .last = {.number = last.epoch, .workers = {last.slots.begin(), last.slots.end()}},
      .state_epoch = last.state_epoch,
      .newest_epoch = known.epoch,
      .lost_launcher_was_first = known.is_first};
  for (int slot = 0; slot < layout_.size(); ++slot) {
    const auto number = static_cast<std::uint32_t>(job_.number_of(slot));
    const bool was_in_last = std::ranges::find(last.numbers, number) != last.numbers.end();
    if (job_.runs(slot) && was_in_last) past.members.push_back(slot);
  }
  for (const auto& [slot, epoch] : known.epochs)
    if (epoch < last.epoch) past.members_of_older.push_back(slot);
  // These members, or their nodes, were lost meanwhile.
  for (const int slot : past.last.workers) {
    if (std::ranges::find(past.members, slot) != past.members.end()) continue;
    tell_loss(past.last, slot);
    // A connected node reports how its workers ended.
    const bool has_node = slot < layout_.size() && known.nodes_known.contains(node_of(slot));
    if (!has_node) last_loss_text_ = format_text("worker {} is lost with its node", slot);
  }
  job_.membership().continue_from(past, now);
  notices_.push_back(format_text("node 0 has a new launcher, which has found {} of the last group",
                                 workers_text(past.members.size())));
}

void FirstElasticNode::add_nodes() {
  const std::vector<std::uint32_t>& workers = link_->start_message()->workers;
  while (layout_.workers.size() < workers.size()) {
    layout_.workers.push_back(static_cast<int>(workers[layout_.workers.size()]));
    job_.add_slots(layout_.workers.back());
  }
}

void FirstElasticNode::node_leaves(int node) {
  if (node < 1 || node >= layout_.nodes() || !leaving_.insert(node).second) return;
  notices_.push_back(format_text("node {} leaves at the next commit", node));
  for (const int slot : slots_of(node)) job_.membership().slot_leaves(slot);
}

std::vector<int> FirstElasticNode::slots_of(int node) const {
  NodeLayout of_node = layout_;
  of_node.node = node;
  std::vector<int> slots;
  for (int local_rank = 0; local_rank < of_node.local_size(); ++local_rank)
    slots.push_back(of_node.rank_of(local_rank));
  return slots;
}

ElasticOrders FirstElasticNode::advance(TimePoint now) {
  if (taking_over_) return {};
  const Membership::Decisions decisions = job_.advance(now);
  ElasticOrders orders{.notices = std::exchange(notices_, {}),
                       .lost_member = std::exchange(lost_member_, {}),
                       .end = decisions.end};
  if (decisions.epoch) {
    orders.group_formed = true;
    last_loss_text_.clear();
    if (decisions.epoch->number > 1)
      orders.notices.push_back("the job goes on with " +
                               workers_text(decisions.epoch->workers.size()));
    tell_group();
  }
  if (is_over() && !last_loss_text_.empty() && orders.end.empty())
    orders.end = last_loss_text_ + ", and no group was formed without it";
  for (const int slot : decisions.starts) start(slot, orders, now);
  if (!decisions.late.empty()) {
    std::vector<std::string> names;
    for (const int slot : decisions.late) names.push_back(format_text("worker {}", slot));
    orders.notices.push_back(
        format_text("the other workers wait in init() for {}; `farandole status` shows what {}",
                    join_text(names, ", "), names.size() == 1 ? "it does" : "they do"));
  }
  for (const int slot : decisions.stopped) {
    orders.notices.push_back(format_text("worker {} is still stopped; killing it", slot));
    kill(slot, false, orders);
  }
  for (const int slot : decisions.superfluous) kill(slot, true, orders);
  if (job_.membership().is_finishing() && link_ != nullptr && !std::exchange(told_no_more_, true))
    link_->tell(NoMoreWorkers());
  return orders;
}

void FirstElasticNode::tell_group() const {
  if (link_ == nullptr) return;
  const Epoch& epoch = job_.membership().epoch();
  GroupFormed formed{.epoch = static_cast<std::uint32_t>(epoch.number),
                     .slots = {},
                     .numbers = {},
                     .state_epoch = static_cast<std::uint32_t>(job_.membership().state_epoch())};
  for (const int slot : epoch.workers) {
    formed.slots.push_back(static_cast<std::uint32_t>(slot));
    formed.numbers.push_back(static_cast<std::uint32_t>(job_.number_of(slot)));
  }
  link_->tell(formed);
}

void FirstElasticNode::start(int slot, ElasticOrders& orders, TimePoint now) {
  const int number = job_.worker_started(slot, now);
  if (is_own(slot))
    orders.starts.push_back({.local_rank = slot, .number = number});
  else
    link_->tell_node(node_of(slot), WorkerStart{static_cast<std::uint32_t>(slot),
                                                static_cast<std::uint32_t>(number)});
}

void FirstElasticNode::kill(int slot, bool is_superfluous, ElasticOrders& orders) const {
  if (is_own(slot))
    orders.kills.push_back(slot);
  else
    link_->tell_node(node_of(slot),
                     WorkerKill{static_cast<std::uint32_t>(job_.number_of(slot)), is_superfluous});
}

}  // namespace farandole
