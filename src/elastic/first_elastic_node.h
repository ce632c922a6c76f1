// FirstElasticNode: node 0's part in an elastic job. It decides which workers are in the group.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "elastic/elastic_job.h"
#include "elastic/elastic_node.h"
#include "nodes/node_layout.h"
#include "nodes/node_options.h"

namespace farandole {

class FirstElasticNode final : public ElasticNode {
 public:
  // The launchers of all nodes start their first workers now. The number of each of these workers
  // is its slot. `options.workers` must be the size of the layout. `link` is null if the job is on
  // this host only. `store` and `link` must outlive this object.
  //
  // If this launcher replaces a lost one, the workers run already. Then this object decides nothing
  // until it has the NodeStates of the other nodes.
  FirstElasticNode(const Membership::Options& options, const NodeLayout& layout, StoreServer& store,
                   NodeLink* link, TimePoint now,
                   const std::optional<Replacement>& replacement = {});

  void worker_ended(int local_rank, bool succeeded, const std::string& how_it_ended,
                    TimePoint now) override;
  void worker_stopped(int local_rank, TimePoint now) override;
  void worker_continued(int local_rank) override;
  void handle_events(const NodeEvents& news, TimePoint now) override;
  bool is_needed(int local_rank) const override;
  bool is_former_member(int local_rank) const override;
  bool is_over() const override { return !takeover_ && !job_.membership().any_worker_runs(); }
  bool is_leaving_job() const override { return false; }
  bool begin_to_leave(TimePoint /*limit*/) override { return false; }
  ElasticOrders advance(TimePoint now) override;
  std::optional<TimePoint> deadline() const override {
    return takeover_ ? std::nullopt : job_.membership().deadline();
  }
  std::int64_t epoch() const override { return job_.membership().epoch().number; }
  const std::vector<int>& slots_by_rank() const override {
    return job_.membership().epoch().workers;
  }

 private:
  // What this launcher has learned while it replaces a lost launcher.
  struct Takeover {
    std::uint32_t epoch = 0;        // the newest epoch that the driver knows
    bool is_first_takeover = true;  // no other launcher has taken over before this one
    GroupFormed last_group{};       // the newest group that a node knows
    // By slot: the epoch of the newest group that the node of this slot knows. Only the workers
    // that were members of this group have an entry.
    std::map<int, std::uint32_t> group_epochs_by_slot{};
    std::set<int> nodes_without_state{};  // nodes that have not sent their state yet
    std::set<int> nodes_with_state{};     // connected nodes that have sent their state
    bool no_more_nodes_expected = false;
  };

  bool is_local_slot(int slot) const { return slot < layout_.local_size(); }
  int node_of(int slot) const;
  void handle_exit(const WorkerExit& exit, TimePoint now);
  void handle_node_change(const NodeChange& change, TimePoint now);
  void add_nodes();
  void announce_lost_member(const Epoch& epoch, int slot);
  void handle_leaving_node(int node);
  std::vector<int> slots_of(int node) const;
  void handle_node_state(const NodeState& state, TimePoint now);
  void take_over(TimePoint now);
  void announce_group() const;
  void order_start(int slot, ElasticOrders& orders, TimePoint now);
  void order_kill(int slot, bool is_former_member, ElasticOrders& orders) const;

  NodeLayout layout_;
  NodeLink* link_;
  ElasticJob job_;
  std::vector<std::string> notices_;
  bool has_sent_no_more_workers_ = false;
  std::optional<Takeover> takeover_;
  std::set<int> leaving_nodes_;            // nodes that are about to leave
  std::optional<MemberLost> lost_member_;  // the next advance() returns it
  // If a member was lost since the last epoch was formed, this text tells the user how. Otherwise
  // it is empty.
  std::string lost_member_text_;
};

}  // namespace farandole
