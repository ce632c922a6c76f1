#include "elastic/other_elastic_node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "elastic/elastic_job.h"
#include "rendezvous/keys.h"

namespace farandole {

OtherElasticNode::OtherElasticNode(const NodeLayout& layout, StoreServer& store, NodeLink& link,
                                   bool has_begun)
    : layout_(layout),
      store_(store),
      link_(link),
      has_begun_(has_begun),
      workers_(static_cast<std::size_t>(layout.local_size())) {
  if (has_begun) return;
  for (int local_rank = 0; local_rank < layout.local_size(); ++local_rank)
    workers_[static_cast<std::size_t>(local_rank)] = {.number = layout.rank_of(local_rank),
                                                      .runs = true};
}

std::optional<int> OtherElasticNode::own(std::uint32_t slot) const {
  const auto first = static_cast<std::uint32_t>(layout_.first_rank());
  const bool is_own = slot >= first && slot - first < workers_.size();
  return is_own ? std::optional(static_cast<int>(slot - first)) : std::nullopt;
}

bool OtherElasticNode::is_member(int local_rank) const {
  return std::ranges::find(numbers_, static_cast<std::uint32_t>(worker(local_rank).number)) !=
         numbers_.end();
}

// If the job has begun without this node, the others go on without its worker until it is a member.
bool OtherElasticNode::matters(int local_rank) const {
  const bool forms_first_group = epoch_ == 0 && !has_begun_;
  return !is_superfluous(local_rank) && (forms_first_group || is_member(local_rank));
}

// Node 0 learns it from the launcher's NodeLink::report_exit().
void OtherElasticNode::worker_ended(int local_rank, bool succeeded, const std::string& how,
                                    TimePoint /*now*/) {
  if (is_member(local_rank)) end_formation(store_, epoch_, how);
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank));
  worker.runs = worker.is_stopped = false;
  worker.how = how;
  has_succeeded_ = has_succeeded_ || succeeded;
}

void OtherElasticNode::worker_stopped(int local_rank, TimePoint /*now*/) {
  workers_.at(static_cast<std::size_t>(local_rank)).is_stopped = true;
  link_.tell(WorkerStop{static_cast<std::uint32_t>(layout_.rank_of(local_rank)), true});
}

void OtherElasticNode::worker_continued(int local_rank) {
  workers_.at(static_cast<std::size_t>(local_rank)).is_stopped = false;
  link_.tell(WorkerStop{static_cast<std::uint32_t>(layout_.rank_of(local_rank)), false});
}

void OtherElasticNode::take_news(const NodeNews& news, TimePoint /*now*/) {
  for (const NodeMessage& message : news.messages) {
    if (const auto* start = std::get_if<WorkerStart>(&message)) take_order(*start);
    if (const auto* kill = std::get_if<WorkerKill>(&message)) take_order(*kill);
    if (const auto* formed = std::get_if<GroupFormed>(&message)) take_order(*formed);
    if (const auto* lost = std::get_if<MemberLost>(&message)) orders_.lost_member = *lost;
    if (std::holds_alternative<NoMoreWorkers>(message)) no_more_workers_ = true;
  }
  if (news.node_0_is_back) link_.tell(state());
}

NodeState OtherElasticNode::state() const {
  NodeState state{.node = static_cast<std::uint32_t>(layout_.node),
                  .group = {.epoch = static_cast<std::uint32_t>(epoch_),
                            .slots = {slots_.begin(), slots_.end()},
                            .numbers = numbers_,
                            .state_epoch = state_epoch_},
                  .is_finishing = no_more_workers_ || has_succeeded_,
                  .is_leaving = leaves_by_.has_value()};
  for (int local_rank = 0; local_rank < layout_.local_size(); ++local_rank) {
    if (!worker(local_rank).runs) continue;
    state.slots.push_back(static_cast<std::uint32_t>(layout_.rank_of(local_rank)));
    state.numbers.push_back(static_cast<std::uint32_t>(worker(local_rank).number));
    if (worker(local_rank).is_stopped) state.stopped_slots.push_back(state.slots.back());
  }
  return state;
}

void OtherElasticNode::take_order(const WorkerStart& start) {
  const auto local_rank = own(start.slot);
  if (!local_rank || worker(*local_rank).runs) return;
  const int number = static_cast<int>(start.number);
  workers_[static_cast<std::size_t>(*local_rank)] = {.number = number, .runs = true};
  orders_.starts.push_back({.local_rank = *local_rank, .number = number});
}

void OtherElasticNode::take_order(const WorkerKill& kill) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.runs || worker.number != static_cast<int>(kill.number)) continue;
    worker.is_superfluous = kill.is_superfluous;
    orders_.kills.push_back(static_cast<int>(i));
  }
}

// A member may have ended after node 0 has decided, and before we have learned it.
void OtherElasticNode::take_order(const GroupFormed& formed) {
  store_.remove_under(keys::epoch_prefix(epoch_));  // nobody uses these keys any more
  epoch_ = formed.epoch;
  slots_.assign(formed.slots.begin(), formed.slots.end());
  numbers_ = formed.numbers;
  state_epoch_ = formed.state_epoch;
  orders_.group_formed = true;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].runs && is_member(static_cast<int>(i)))
      end_formation(store_, epoch_, workers_[i].how);
}

bool OtherElasticNode::leave(TimePoint limit) {
  if (leaves_by_ || no_more_workers_) return false;
  link_.tell(NodeLeaves{static_cast<std::uint32_t>(layout_.node)});
  leaves_by_ = limit;
  orders_.notices.emplace_back(
      "this node leaves the job at its next commit; if that takes too long, its workers get "
      "SIGTERM");
  return true;
}

ElasticOrders OtherElasticNode::advance(TimePoint now) {
  if (leaves_by_ && now >= *leaves_by_) orders_.must_leave = !std::exchange(has_told_limit_, true);
  return std::exchange(orders_, {});
}

}  // namespace farandole
