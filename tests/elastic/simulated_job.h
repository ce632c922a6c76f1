// SimulatedJob: an elastic job over several nodes, in one thread and from one seed. The decisions
// and orders are those of the real classes; time, messages, workers and their groups are simulated.
// All that is broken is mended after some time: the network heals, and the driver, or the user of a
// job without one, starts lost launchers again. The rules are checked after every step.
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
  kAllButOneKilled,  // all launchers but one, and that of node 0
  kCutFromNode0,
  kCutFromEachOther,  // two nodes, which both reach node 0
  kCutFromOthers,     // a node reaches only node 0
  kCutFromAll,
  kCutToNode0,  // in this direction only
  kCutFromNode0OneWay,
  kSwizzle,
  kSlow,
  kFrozen,  // its connections stay open
  kNodeLeaves,
  kNodeAdded,
  kFirstLost,  // the launcher of node 0
  kHostAppears,
  kHostVanishes,
  kHostComesBackAtOnce,
  kHostChangesSlots,
  kHostIsReplaced,
};
inline constexpr int kFaults = 21;
const char* name_of(Fault fault);

// How often something has happened, in all jobs.
struct SimulatedCounts {
  std::array<int, kFaults> faults{};
  int epochs = 0;
  int takeovers = 0;
  int losses_while_taking_over = 0;
  int late_nodes = 0;               // a new launcher of node 0 did not wait for them any longer
  int returns_after_rejection = 0;  // such a node came to the next launcher of node 0
  int failed_formations = 0;
  int calls_failed_by_cuts = 0;  // although all members reached node 0
  int old_launchers = 0;         // that still ran when another one had their number
  int rejected_nodes = 0;
  int groups_with_frozen_members = 0;  // that the others have left because they were told to
  int numbers_used_again = 0;          // by another host
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
  SimulatedNode* home = nullptr;
  State state = State::kLoading;
  std::int64_t epoch = 0;  // in which it is, or was last
  int rank = 0;
  std::int64_t state_epoch = 0;  // in which it got the state; 0: not yet
  bool is_stopped = false;
  bool waits_for_local_ranks = false;  // while it forms: it sees only the Store of its node
  int store = 0;                       // the Store of the job to which it has a connection
  bool knows_state = false;            // see RankRequest
  std::int64_t progress = 0;           // how many steps its state has seen
};

// A launcher with its workers.
struct SimulatedNode {
  int slots = 0;
  std::string host{};
  std::unique_ptr<StoreServer> store;
  std::unique_ptr<NodeLinkInTest> link;  // what it has told node 0
  std::unique_ptr<OtherElasticNode> elastic;
  std::map<int, SimulatedProcess> processes;  // by local rank
  bool runs = false;                          // it takes part, or believes so
  bool is_connected = false;                  // as it believes
  bool is_leaving = false;
  bool is_abandoned = false;  // the connection to its driver was ended
  TimePoint frozen_from{};
  TimePoint frozen_until{};
  std::int64_t lost_epoch = 0;               // its workers know that a member of this epoch is lost
  std::optional<TimePoint> joins_at{};       // it was started, and comes then
  std::optional<TimePoint> returns_until{};  // it has lost node 0, and waits for another launcher
  std::optional<bool>
      end_to_tell{};  // it has ended, and the driver does not know it: has it failed?
  std::deque<std::pair<TimePoint, NodeMessage>> to_node;
  std::deque<std::pair<TimePoint, NodeMessage>> to_node_0;
};

class SimulatedJob {
 public:
  enum class Kind { kWithoutDriver, kFixedHosts, kDiscovery };
  // Node 0 of jobs with a driver has no workers. With `tells`, all that happens is printed.
  SimulatedJob(unsigned seed, Kind kind, bool tells);
  SimulatedJob(const SimulatedJob&) = delete;
  SimulatedJob& operator=(const SimulatedJob&) = delete;

  // Whether this kind of job has such faults.
  static bool has(Kind kind, Fault fault);
  // Lets it happen, if it can now.
  void inject(Fault fault);
  // One event of each kind may happen.
  void step();
  // `steps` steps with random faults.
  void run(int steps);
  // Steps until everybody runs, or the job is over. Returns their number.
  int recover(int steps_max);

  bool is_over() const { return is_over_; }
  bool everybody_runs() const;
  const SimulatedCounts& counts() const { return counts_; }

 private:
  using Process = SimulatedProcess;
  using Node = SimulatedNode;

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool one_in(int count) { return between(1, count) == 1; }
  int count() const { return static_cast<int>(nodes_.size()); }
  StoreServer& job_store() { return *at(0).store; }
  Node& at(int node) { return *nodes_.at(static_cast<std::size_t>(node)); }
  const Node& at(int node) const { return *nodes_.at(static_cast<std::size_t>(node)); }
  int first_slot(int node) const;
  bool is_taking_over() const { return !first_ || !told_nobody_is_expected_; }
  bool is_frozen(const Node& node) const { return now_ < node.frozen_until; }
  bool has_launcher(int node) const { return at(node).runs || at(node).joins_at; }
  void tell(const std::string& what) const;

  // The launchers.
  void start_launcher(int number, const HostEntry& host);
  void begin_node(int number, bool has_begun);
  void launcher_joins(int number);
  void end_launcher(Node& node, bool has_failed);
  void kill_launcher(int number);
  void start_worker(int node, int local_rank, int number);
  void end_worker(int node, int local_rank);
  void set_stopped(int node, int local_rank, bool is_stopped);
  void step_of_node(int number);
  void notice_losses(int number);
  void step_of_lonely(int number);
  void carry_out_orders(int number);
  void send_what_was_told(int number);
  void take(std::deque<std::pair<TimePoint, NodeMessage>>& messages,
            const std::function<void(const NodeNews&)>& taker) const;
  TimePoint arrival(int node) {
    return now_ + std::chrono::milliseconds(between(0, network_.is_slow(node) ? 4000 : 50));
  }
  void send_to_0(int node, const NodeMessage& message) {
    at(node).to_node_0.emplace_back(arrival(node), message);
  }
  void end_old_launchers();
  void advance_driver();
  void restart_by_user();

  // Node 0.
  void change(int number, bool is_here, bool has_begun = false);
  void write_line(std::function<void(SimulatedDriver&)> line);
  void pass_lines_on();
  void advance_node_0();
  void lose_first();
  void replace_first();
  void find_node_0(int number);
  void tell_if_nobody_is_expected();

  // The workers.
  bool can_reach_store(const Process& process) const;
  void step_of(Process& process);
  void ask(Process& process);
  void take_rank(Process& process);
  void form(Process& process);
  void fail_formation(Process& process);
  void train(Process& process);
  std::vector<Process*> members_of(std::int64_t epoch);
  bool are_cut(const std::vector<Process*>& members) const;
  void for_all_processes(const std::function<void(Process&)>& visit);

  // The rules.
  void check_new_group();
  void check();
  void check_end(const std::string& why);

  // Faults.
  void worker_fault(Fault fault, int number);
  void network_fault(Fault fault, int number);
  void list_fault(Fault fault);
  void change_list_back();
  bool has_changed_list(Fault fault, std::vector<HostEntry>& hosts);
  HostEntry new_host(int slots);
  Fault any_fault();
  void faults_at_new_group();

  std::mt19937 random_;
  Kind kind_;
  bool tells_;
  SimulatedCounts counts_;
  TimePoint now_ = TimePoint{} + std::chrono::seconds(1000);
  SimulatedNetwork network_{random_};
  std::optional<SimulatedDriver> driver_;                     // of jobs that have one
  std::vector<std::function<void(SimulatedDriver&)>> lines_;  // to the driver, on their way
  std::deque<std::pair<TimePoint, HostEntry>> listed_later_;
  int hosts_ = 0;  // how many names were used
  bool starts_may_fail_ = false;
  std::set<std::string> broken_hosts_{};
  std::multimap<TimePoint, Fault> coming_{};

  Membership::Options options_;
  std::vector<int> roll_;  // how many workers each node has, as node 0 knows
  NodeLinkInTest link_;
  std::optional<FirstElasticNode> first_;
  std::set<int> here_;      // the nodes that node 0 believes to be connected
  std::set<int> expected_;  // by the new launcher of node 0
  int stores_ = 0;          // how many launchers of node 0 were lost, and their Stores
  TimePoint first_returns_at_{};
  TimePoint first_waits_until_{};
  bool told_nobody_is_expected_ = true;
  std::int64_t known_group_ = 0;  // the newest that a node knew when node 0's launcher was replaced

  std::vector<std::unique_ptr<Node>> nodes_;        // by number
  std::list<std::unique_ptr<Node>> old_launchers_;  // whose number another one has
  std::set<int> given_up_;  // nodes for which a new launcher of node 0 did not wait any longer

  std::int64_t epoch_ = 0;
  std::int64_t progress_ = 0;                                // the steps of the training
  std::map<std::int64_t, int> sizes_;                        // by epoch
  std::map<std::pair<std::int64_t, int>, int> local_sizes_;  // by epoch and node
  bool is_over_ = false;
};

}  // namespace farandole
