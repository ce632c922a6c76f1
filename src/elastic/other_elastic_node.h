// OtherElasticNode: the part of every node but node 0 in an elastic job. It carries out the orders
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
  // Unless the job has begun already, the launcher starts its first workers now; their numbers are
  // their slots. `store`, of this node, and `link` must outlive this object.
  OtherElasticNode(const NodeLayout& layout, StoreServer& store, NodeLink& link, bool has_begun);

  void worker_ended(int local_rank, bool succeeded, const std::string& how, TimePoint now) override;
  void worker_stopped(int local_rank, TimePoint now) override;
  void worker_continued(int local_rank) override;
  void take_news(const NodeNews& news, TimePoint now) override;
  bool matters(int local_rank) const override;
  bool is_superfluous(int local_rank) const override { return worker(local_rank).is_superfluous; }
  bool is_over() const override { return no_more_workers_ || (leaves_by_ && !anybody_runs()); }
  bool leaves_job() const override { return !no_more_workers_; }
  bool leave(TimePoint limit) override;
  ElasticOrders advance(TimePoint now) override;
  std::optional<TimePoint> deadline() const override {
    return has_told_limit_ ? std::nullopt : leaves_by_;
  }
  std::int64_t epoch() const override { return epoch_; }
  const std::vector<int>& slots_by_rank() const override { return slots_; }

 private:
  struct Worker {
    int number = -1;
    bool runs = false;
    bool is_superfluous = false;
    bool is_stopped = false;
    std::string how{};  // it has ended
  };

  const Worker& worker(int local_rank) const {
    return workers_.at(static_cast<std::size_t>(local_rank));
  }
  // The local rank of a slot; empty if it is of another node.
  std::optional<int> own(std::uint32_t slot) const;
  bool is_member(int local_rank) const;
  bool anybody_runs() const { return std::ranges::any_of(workers_, &Worker::runs); }
  NodeState state() const;
  void take_order(const WorkerStart& start);
  void take_order(const WorkerKill& kill);
  void take_order(const GroupFormed& formed);

  NodeLayout layout_;
  StoreServer& store_;
  NodeLink& link_;
  bool has_begun_;
  std::vector<Worker> workers_;  // by local rank
  std::int64_t epoch_ = 0;
  std::vector<int> slots_;              // by rank
  std::vector<std::uint32_t> numbers_;  // of the members, by rank
  std::uint32_t state_epoch_ = 0;       // see GroupFormed
  bool no_more_workers_ = false;
  bool has_succeeded_ = false;          // a worker
  std::optional<TimePoint> leaves_by_;  // it is about to leave
  bool has_told_limit_ = false;
  ElasticOrders orders_;  // for the next advance()
};

}  // namespace farandole
