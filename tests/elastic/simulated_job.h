// SimulatedJob: an elastic job over several nodes, in one thread and from one seed. The real
// classes make the decisions and orders; time, messages, workers and their groups are simulated.
// All faults end after some time: the network heals, and lost launchers are started again, by the
// driver or, in a job without a driver, by the user. The rules are checked after every step.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "elastic/first_elastic_node.h"
#include "elastic/other_elastic_node.h"
#include "nodes/heartbeat.h"
#include "nodes/node_link_in_test.h"
#include "simulated_driver.h"
#include "simulated_network.h"

namespace farandole {

enum class Fault {
  kWorkerEnds,
  kWorkerStops,
  kLauncherKilled,
  kAllButOneKilled,  // only two launchers are left: that of node 0 and one other
  kCutFromNode0,
  kCutFromEachOther,  // two nodes that both reach node 0
  kCutFromOthers,     // a node reaches only node 0
  kCutFromAll,
  kCutToNode0,  // a node cannot send to node 0, but can receive
  kCutFromNode0OneWay,
  kNodesCutInTurn,
  kSlow,
  kFrozen,  // the node does nothing, but its connections stay open
  kNodeLeaves,
  kNodeAdded,
  kNode0LauncherLost,
  kHostAppears,
  kHostVanishes,
  kHostComesBackAtOnce,
  kHostChangesSlots,
  kHostIsReplaced,
};
inline constexpr int kFaultCount = 21;
const char* name_of(Fault fault);

// How often something has happened, in all jobs.
struct SimulatedCounts {
  std::array<int, kFaultCount> faults{};
  int epochs = 0;
  int takeovers = 0;
  int losses_while_taking_over = 0;
  int late_nodes = 0;               // nodes for which a new launcher of node 0 no longer waited
  int returns_after_rejection = 0;  // late nodes that the next launcher of node 0 accepted
  int failed_formations = 0;
  int calls_failed_by_cuts = 0;  // failed calls whose members all reached node 0
  int concurrent_launchers = 0;  // launchers that still ran when a new one had their node number
  int rejected_nodes = 0;
  int groups_with_frozen_members = 0;  // groups that the other members were ordered to leave
  int node_numbers_reused = 0;         // node numbers that were given to another host
  int ends_in_doubt = 0;
  void add(const SimulatedCounts& other);
};

// The process of a worker.
struct SimulatedNode;
struct SimulatedProcess {
  enum class State { kLoading, kAsking, kForming, kRunning };
  int number = 0;
  int slot = 0;
  int node = 0;
  SimulatedNode* home_node = nullptr;
  State state = State::kLoading;
  std::int64_t epoch = 0;  // the current or last epoch of the process
  int rank = 0;
  std::int64_t state_epoch = 0;  // the epoch in which the process got its state; 0: no state yet
  bool is_stopped = false;
  // True during the part of a formation in which the process sees only the Store of its node, not
  // the Store of the job.
  bool waits_for_local_ranks = false;
  int store_number = 0;         // the job's Store to which the process is connected
  bool knows_state = false;     // see RankRequest
  std::int64_t steps_done = 0;  // how many steps of the training its state contains
};

// A launcher with its workers.
struct SimulatedNode {
  int slots = 0;
  std::string host{};
  std::unique_ptr<StoreServer> store;
  std::unique_ptr<NodeLinkInTest> link;  // keeps the messages to node 0
  std::unique_ptr<OtherElasticNode> elastic_node;
  std::map<int, SimulatedProcess> processes;  // by local rank
  // Whether the launcher takes part in the job. Also true if the launcher was lost and has not
  // noticed this yet.
  bool is_running = false;
  bool is_connected = false;  // to node 0, as far as this launcher knows
  bool is_leaving = false;
  bool is_abandoned = false;  // the driver has closed the connection to this launcher
  TimePoint frozen_from{};
  TimePoint frozen_until{};
  std::int64_t lost_epoch = 0;          // the workers know that a member of this epoch is lost
  std::optional<TimePoint> joins_at{};  // when the started launcher joins the job
  // Set if the launcher has lost node 0: until when it waits for a new launcher of node 0.
  std::optional<TimePoint> waits_for_node_0_until{};
  // Set if the launcher has ended and the driver does not know this yet: whether the launcher has
  // failed.
  std::optional<bool> unreported_end_failed{};
  std::deque<std::pair<TimePoint, NodeMessage>> to_node;
  std::deque<std::pair<TimePoint, NodeMessage>> to_node_0;
};

class SimulatedJob {
 public:
  enum class Kind { kWithoutDriver, kFixedHosts, kDiscovery };
  // In a job with a driver, node 0 has no workers. With `prints_events`, all events are printed.
  SimulatedJob(unsigned seed, Kind kind, bool prints_events);
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  // Whether this fault can happen in this kind of job.
  static bool can_have(Kind kind, Fault fault);
  // Makes the fault happen, if the fault is possible now.
  void inject(Fault fault);
  // Advances the time. Each part of the job may do something.
  void step();
  // Makes `steps` steps with random faults.
  void run(int steps);
  // Makes steps until all workers run or the job is over. Returns the number of steps.
  int recover(int steps_max);

  bool is_over() const { return is_over_; }
  bool all_workers_run() const;
  const SimulatedCounts& counts() const { return counts_; }

 private:
  using Process = SimulatedProcess;
  using Node = SimulatedNode;

  int random_between(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random_);
  }
  bool happens_one_in(int count) { return random_between(1, count) == 1; }
  int node_count() const { return static_cast<int>(nodes_.size()); }
  StoreServer& job_store() { return *node_at(0).store; }
  Node& node_at(int node) { return *nodes_.at(static_cast<std::size_t>(node)); }
  const Node& node_at(int node) const { return *nodes_.at(static_cast<std::size_t>(node)); }
  int first_slot(int node) const;
  bool is_taking_over() const { return !first_node_ || !has_stopped_expecting_nodes_; }
  bool is_frozen(const Node& node) const { return now_ < node.frozen_until; }
  bool has_launcher(int node) const { return node_at(node).is_running || node_at(node).joins_at; }
  void print_event(const std::string& text) const;

  // The launchers.
  void start_launcher(int number, const HostEntry& host);
  void begin_node(int number, bool has_begun);
  void try_to_join(int number);
  void end_launcher(Node& node, bool has_failed);
  void kill_launcher(int number);
  void start_worker(int node, int local_rank, int number);
  void end_worker(int node, int local_rank);
  void set_stopped(int node, int local_rank, bool is_stopped);
  void step_node(int number);
  void notice_losses(int number);
  void step_disconnected_node(int number);
  void carry_out_orders(int number);
  void send_link_messages(int number);
  void deliver_due_messages(std::deque<std::pair<TimePoint, NodeMessage>>& messages,
                            const std::function<void(const NodeEvents&)>& receiver) const;
  TimePoint arrival_time(int node) {
    return now_ + std::chrono::milliseconds(random_between(0, network_.is_slow(node) ? 4000 : 50));
  }
  void send_to_node_0(int node, const NodeMessage& message) {
    node_at(node).to_node_0.emplace_back(arrival_time(node), message);
  }
  void end_concurrent_launchers();
  void advance_driver();
  void restart_by_user();

  // Node 0.
  void report_node_change(int number, bool is_present, bool has_begun = false);
  void send_to_driver(std::function<void(SimulatedDriver&)> message_to_driver);
  void deliver_messages_to_driver();
  void advance_node_0();
  void lose_node_0_launcher();
  void replace_node_0_launcher();
  void reconnect_to_node_0(int number);
  void stop_expecting_nodes_when_due();

  // The workers.
  bool can_reach_store(const Process& process) const;
  void step_process(Process& process);
  void ask_for_rank(Process& process);
  void take_rank(Process& process);
  void advance_formation(Process& process);
  void fail_formation(Process& process);
  void train(Process& process);
  std::vector<Process*> members_of(std::int64_t epoch);
  bool any_member_is_cut_off(const std::vector<Process*>& members) const;
  void for_all_processes(const std::function<void(Process&)>& visit);

  // The rules.
  void check_new_group();
  void check_training_groups();
  void check_end(const std::string& reason);

  // Faults.
  void inject_worker_fault(Fault fault, int number);
  void inject_network_fault(Fault fault, int number);
  void inject_list_fault(Fault fault);
  void restore_hosts();
  bool change_host_list(Fault fault, std::vector<HostEntry>& hosts);
  HostEntry new_host(int slots);
  Fault random_fault();
  void schedule_faults_at_new_group();

  std::mt19937 random_;
  Kind kind_;
  bool prints_events_;
  SimulatedCounts counts_;
  TimePoint now_ = TimePoint{} + std::chrono::seconds(1000);
  SimulatedNetwork network_{random_};
  std::optional<SimulatedDriver> driver_;  // empty in a job without a driver
  // Messages on their way to the driver.
  std::vector<std::function<void(SimulatedDriver&)>> messages_to_driver_;
  std::deque<std::pair<TimePoint, HostEntry>> hosts_to_restore_;
  int host_names_used_ = 0;
  bool starts_may_fail_ = false;
  std::set<std::string> broken_hosts_{};
  std::multimap<TimePoint, Fault> scheduled_faults_{};

  Membership::Options options_;
  std::vector<int> workers_of_nodes_;  // how many workers each node has, as far as node 0 knows
  NodeLinkInTest link_;
  std::optional<FirstElasticNode> first_node_;
  std::set<int> connected_nodes_;  // the connected nodes, as far as node 0 knows
  std::set<int> expected_nodes_;   // nodes for which the new launcher of node 0 waits
  int launchers_lost_ = 0;         // how many launchers of node 0 were lost, each with its Store
  TimePoint node_0_returns_at_{};
  TimePoint node_0_waits_until_{};
  bool has_stopped_expecting_nodes_ = true;
  // The newest group that a node knew when node 0's launcher was replaced.
  std::int64_t newest_known_group_ = 0;

  std::vector<std::unique_ptr<Node>> nodes_;  // by number
  // Launchers that still run while a new launcher has their node number.
  std::list<std::unique_ptr<Node>> superseded_launchers_;
  std::set<int> nodes_given_up_;  // nodes for which the new launcher of node 0 no longer waits

  std::int64_t epoch_ = 0;
  std::int64_t steps_done_ = 0;                              // steps of the training
  std::map<std::int64_t, int> group_sizes_;                  // by epoch
  std::map<std::pair<std::int64_t, int>, int> local_sizes_;  // by epoch and node
  bool is_over_ = false;
};

}  // namespace farandole
