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
                                                      .is_running = true};
}

std::optional<int> OtherElasticNode::local_rank_of(std::uint32_t slot) const {
  const auto first_slot = static_cast<std::uint32_t>(layout_.first_rank());
  const bool is_local = slot >= first_slot && slot - first_slot < workers_.size();
  return is_local ? std::optional(static_cast<int>(slot - first_slot)) : std::nullopt;
}

bool OtherElasticNode::is_member(int local_rank) const {
  return std::ranges::find(member_numbers_,
                           static_cast<std::uint32_t>(worker(local_rank).number)) !=
         member_numbers_.end();
}

// If the job has begun without this node, the job needs a worker of this node only when this worker
// has become a member.
bool OtherElasticNode::is_needed(int local_rank) const {
  const bool forms_first_group = epoch_ == 0 && !has_begun_;
  return !is_former_member(local_rank) && (forms_first_group || is_member(local_rank));
}

// Node 0 learns about the end from NodeLink::report_exit(), which the launcher calls.
void OtherElasticNode::worker_ended(int local_rank, bool succeeded, const std::string& how_it_ended,
                                    TimePoint /*now*/) {
  if (is_member(local_rank)) fail_formation(store_, epoch_, how_it_ended);
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank));
  worker.is_running = worker.is_stopped = false;
  worker.how_it_ended = how_it_ended;
  any_worker_has_succeeded_ = any_worker_has_succeeded_ || succeeded;
}

void OtherElasticNode::worker_stopped(int local_rank, TimePoint /*now*/) {
  workers_.at(static_cast<std::size_t>(local_rank)).is_stopped = true;
  link_.tell(WorkerStop{static_cast<std::uint32_t>(layout_.rank_of(local_rank)), true});
}

void OtherElasticNode::worker_continued(int local_rank) {
  workers_.at(static_cast<std::size_t>(local_rank)).is_stopped = false;
  link_.tell(WorkerStop{static_cast<std::uint32_t>(layout_.rank_of(local_rank)), false});
}

void OtherElasticNode::handle_events(const NodeEvents& news, TimePoint /*now*/) {
  for (const NodeMessage& message : news.messages) {
    if (const auto* start = std::get_if<WorkerStart>(&message)) handle_order(*start);
    if (const auto* kill = std::get_if<WorkerKill>(&message)) handle_order(*kill);
    if (const auto* formed = std::get_if<GroupFormed>(&message)) handle_order(*formed);
    if (const auto* lost_member = std::get_if<MemberLost>(&message))
      orders_.lost_member = *lost_member;
    if (std::holds_alternative<NoMoreWorkers>(message)) no_more_workers_ = true;
  }
  if (news.node_0_is_back) link_.tell(state());
}

NodeState OtherElasticNode::state() const {
  NodeState state{.node = static_cast<std::uint32_t>(layout_.node),
                  .group = {.epoch = static_cast<std::uint32_t>(epoch_),
                            .slots = {member_slots_.begin(), member_slots_.end()},
                            .numbers = member_numbers_,
                            .state_epoch = state_epoch_},
                  .is_finishing = no_more_workers_ || any_worker_has_succeeded_,
                  .is_leaving = leave_deadline_.has_value()};
  for (int local_rank = 0; local_rank < layout_.local_size(); ++local_rank) {
    if (!worker(local_rank).is_running) continue;
    state.slots.push_back(static_cast<std::uint32_t>(layout_.rank_of(local_rank)));
    state.numbers.push_back(static_cast<std::uint32_t>(worker(local_rank).number));
    if (worker(local_rank).is_stopped) state.stopped_slots.push_back(state.slots.back());
  }
  return state;
}

void OtherElasticNode::handle_order(const WorkerStart& start) {
  const auto local_rank = local_rank_of(start.slot);
  if (!local_rank || worker(*local_rank).is_running) return;
  const int number = static_cast<int>(start.number);
  workers_[static_cast<std::size_t>(*local_rank)] = {.number = number, .is_running = true};
  orders_.starts.push_back({.local_rank = *local_rank, .number = number});
}

void OtherElasticNode::handle_order(const WorkerKill& kill) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.is_running || worker.number != static_cast<int>(kill.number)) continue;
    worker.is_former_member = kill.is_former_member;
    orders_.kills.push_back(static_cast<int>(i));
  }
}

// A member may have ended after node 0 had formed the group, and before this node was told about
// the group. Then the formation must fail.
void OtherElasticNode::handle_order(const GroupFormed& formed) {
  store_.remove_with_prefix(keys::epoch_prefix(epoch_));  // no worker uses these keys any more
  epoch_ = formed.epoch;
  member_slots_.assign(formed.slots.begin(), formed.slots.end());
  member_numbers_ = formed.numbers;
  state_epoch_ = formed.state_epoch;
  orders_.group_formed = true;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].is_running && is_member(static_cast<int>(i)))
      fail_formation(store_, epoch_, workers_[i].how_it_ended);
}

bool OtherElasticNode::begin_to_leave(TimePoint limit) {
  if (leave_deadline_ || no_more_workers_) return false;
  link_.tell(NodeLeaves{static_cast<std::uint32_t>(layout_.node)});
  leave_deadline_ = limit;
  orders_.notices.emplace_back(
      "this node leaves the job at its next commit; if that takes too long, its workers get "
      "SIGTERM");
  return true;
}

ElasticOrders OtherElasticNode::advance(TimePoint now) {
  if (leave_deadline_ && now >= *leave_deadline_)
    orders_.must_leave = !std::exchange(has_reported_leave_deadline_, true);
  return std::exchange(orders_, {});
}

}  // namespace farandole
