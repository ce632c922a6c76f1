// FirstElasticNode: node 0's part in an elastic job. It decides who is in the group.
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
  // The launchers of all nodes start their first workers now; the numbers of these are their slots.
  // `options.workers` must be the size of the layout. `link` is null if the job is on this host
  // only. `store` and `link` must outlive this object.
  //
  // If this launcher replaces a lost one, the workers run already. This object then first waits for
  // the NodeStates of the other nodes, and decides nothing.
  FirstElasticNode(const Membership::Options& options, const NodeLayout& layout, StoreServer& store,
                   NodeLink* link, TimePoint now, const std::optional<Replacement>& replaces = {});

  void worker_ended(int local_rank, bool succeeded, const std::string& how, TimePoint now) override;
  void worker_stopped(int local_rank, TimePoint now) override;
  void worker_continued(int local_rank) override;
  void take_news(const NodeNews& news, TimePoint now) override;
  bool matters(int local_rank) const override;
  bool is_superfluous(int local_rank) const override;
  bool is_over() const override { return !taking_over_ && !job_.membership().anybody_runs(); }
  bool leaves_job() const override { return false; }
  bool leave(TimePoint /*limit*/) override { return false; }
  ElasticOrders advance(TimePoint now) override;
  std::optional<TimePoint> deadline() const override {
    return taking_over_ ? std::nullopt : job_.membership().deadline();
  }
  std::int64_t epoch() const override { return job_.membership().epoch().number; }
  const std::vector<int>& slots_by_rank() const override {
    return job_.membership().epoch().workers;
  }

 private:
  // What is known while this launcher takes the place of a lost one.
  struct TakeOver {
    std::uint32_t epoch = 0;  // the newest one that the driver knows
    bool is_first = true;     // no other launcher has taken over before
    GroupFormed last{};       // the newest group that a node knows
    // The newest group that the node of a worker knows, if the worker was a member: its epoch, by
    // slot.
    std::map<int, std::uint32_t> epochs{};
    std::set<int> nodes_to_tell{};  // they are back, and have not sent their state yet
    std::set<int> nodes_known{};    // they are connected, and have sent it
    bool nobody_is_expected = false;
  };

  bool is_own(int slot) const { return slot < layout_.local_size(); }
  int node_of(int slot) const;
  void take_exit(const WorkerExit& exit, TimePoint now);
  void take_change(const NodeChange& change, TimePoint now);
  void add_nodes();
  void tell_loss(const Epoch& epoch, int slot);
  void node_leaves(int node);
  std::vector<int> slots_of(int node) const;
  void take_state(const NodeState& state, TimePoint now);
  void take_over(TimePoint now);
  void tell_group() const;
  void start(int slot, ElasticOrders& orders, TimePoint now);
  void kill(int slot, bool is_superfluous, ElasticOrders& orders) const;

  NodeLayout layout_;
  NodeLink* link_;
  ElasticJob job_;
  std::vector<std::string> notices_;
  bool told_no_more_ = false;
  std::optional<TakeOver> taking_over_;
  std::set<int> leaving_;                  // nodes that are about to leave
  std::optional<MemberLost> lost_member_;  // not returned yet
  std::string last_loss_text_;             // of a member since the last epoch was formed, in words
};

}  // namespace farandole
