// OtherElasticNode: what a node other than node 0 does in an elastic job. It carries out the orders
// of node 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elastic/elastic_node.h"
#include "nodes/node_layout.h"
#include "rendezvous/store_server.h"

namespace farandole {

class OtherElasticNode final : public ElasticNode {
 public:
  // If the job has not begun yet, the launcher starts its first workers now. The number of each of
  // these workers is its slot. `store` is the Store of this node; `store` and `link` must outlive
  // this object.
  OtherElasticNode(const NodeLayout& layout, StoreServer& store, NodeLink& link, bool has_begun);

  void worker_ended(int local_rank, bool succeeded, const std::string& how_it_ended,
                    TimePoint now) override;
  void worker_stopped(int local_rank, TimePoint now) override;
  void worker_continued(int local_rank) override;
  void handle_events(const NodeEvents& news, TimePoint now) override;
  bool is_needed(int local_rank) const override;
  bool is_former_member(int local_rank) const override {
    return worker(local_rank).is_former_member;
  }
  bool is_over() const override {
    return no_more_workers_ || (leave_deadline_ && !any_worker_runs());
  }
  bool is_leaving_job() const override { return !no_more_workers_; }
  bool begin_to_leave(TimePoint limit) override;
  ElasticOrders advance(TimePoint now) override;
  std::optional<TimePoint> deadline() const override {
    return has_reported_leave_deadline_ ? std::nullopt : leave_deadline_;
  }
  std::int64_t epoch() const override { return epoch_; }
  const std::vector<int>& slots_by_rank() const override { return member_slots_; }

 private:
  struct Worker {
    int number = -1;
    bool is_running = false;
    bool is_former_member = false;
    bool is_stopped = false;
    std::string how_it_ended{};  // empty if the worker has not ended
  };

  const Worker& worker(int local_rank) const {
    return workers_.at(static_cast<std::size_t>(local_rank));
  }
  // The local rank of a slot; empty if the slot is on another node.
  std::optional<int> local_rank_of(std::uint32_t slot) const;
  bool is_member(int local_rank) const;
  bool any_worker_runs() const { return std::ranges::any_of(workers_, &Worker::is_running); }
  NodeState state() const;
  void handle_order(const WorkerStart& start);
  void handle_order(const WorkerKill& kill);
  void handle_order(const GroupFormed& formed);

  NodeLayout layout_;
  StoreServer& store_;
  NodeLink& link_;
  bool has_begun_;
  std::vector<Worker> workers_;  // by local rank
  std::int64_t epoch_ = 0;
  std::vector<int> member_slots_;              // by rank
  std::vector<std::uint32_t> member_numbers_;  // numbers of the members, by rank
  std::uint32_t state_epoch_ = 0;              // see GroupFormed
  bool no_more_workers_ = false;
  bool any_worker_has_succeeded_ = false;
  std::optional<TimePoint> leave_deadline_;  // set if this node is about to leave
  bool has_reported_leave_deadline_ = false;
  ElasticOrders orders_;  // the orders that the next advance() returns
};

}  // namespace farandole
