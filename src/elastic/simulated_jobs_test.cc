// Simulated elastic jobs over several nodes. The decisions and orders are those
// of the real classes; time, messages, workers and their groups are simulated.
// Workers die, stop and continue; nodes are killed, are cut off, come back,
// leave, and are added, all at random. In half of the jobs, node 0 has no
// workers, and its launcher is lost and replaced, too. The rules are checked
// after every event, and in the end everybody must come together. A seed gives
// the same job each time.
//
// FARANDOLE_TEST_SEEDS is the number of jobs, by default 2,000.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
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
#include "nodes/node_link_in_test.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The process of a worker.
struct Process {
  enum class State { kLoading, kAsking, kForming, kRunning };
  int number = 0;
  int slot = 0;
  int node = 0;
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

struct Node {
  std::unique_ptr<StoreServer> store;
  std::unique_ptr<NodeLinkInTest> link;  // what it has told node 0
  std::unique_ptr<OtherElasticNode> elastic;
  std::map<int, Process> processes;  // by local rank
  bool runs = false;
  bool is_connected = false;
  bool node_0_knows = true;  // that it is connected, or not
  std::deque<std::pair<TimePoint, NodeMessage>> to_node;
  std::deque<std::pair<TimePoint, NodeMessage>> to_node_0;
};

class SimulatedJob {
 public:
  explicit SimulatedJob(unsigned seed) : random_(seed) {
    has_driver_ = between(0, 1) == 0;
    const int nodes = between(1, 3) + (has_driver_ ? 1 : 0);
    layout_.workers.clear();
    for (int node = 0; node < nodes; ++node)
      layout_.workers.push_back(has_driver_ && node == 0 ? 0 : between(1, 3));
    options_.workers = layout_.size();
    options_.workers_min = between(1, std::min(2, layout_.size()));
    options_.workers_max = between(layout_.size(), 10);
    options_.shortage_max = seconds(1'000'000);
    link_.start.emplace();
    nodes_.resize(static_cast<std::size_t>(nodes));
    for (int node = 0; node < nodes; ++node) {
      link_.start->workers.push_back(static_cast<std::uint32_t>(slots_of(node)));
      nodes_[index(node)].runs = nodes_[index(node)].is_connected = true;
      if (node > 0) begin_node(node, false);
      if (node > 0) known_nodes_.insert(node);
    }
    first_.emplace(options_, layout_, *store_, &link_, now_);
    for (int node = 0; node < nodes; ++node)
      for (int i = 0; i < slots_of(node); ++i) start(node, i, first_slot(node) + i);
  }

  void run(int events) {
    // The job ends if a worker fails before the first epoch.
    for (int i = 0; i < 3000 && !everybody_runs(); ++i) step();
    for (int i = 0; i < events && !is_over_; ++i) {
      if (between(0, 14) == 0) fault();
      step();
    }
  }
  // Without further faults, everybody comes together.
  void calm_down() {
    // A node that leaves may have to stay, because too few workers would be
    // left. Without its old launcher, it can take part again.
    for (const int node : leaving_) {
      lose(node);
      end_node(node);
    }
    for (int i = 0; i < 6000 && !is_over_ && !everybody_runs(); ++i) {
      if (is_taking_over()) step();
      if (is_taking_over()) continue;
      for (int node = 1; node < count(); ++node) {
        if (!nodes_[index(node)].is_connected) come_back(node);
        for (auto& [local_rank, process] : nodes_[index(node)].processes)
          set_stopped(node, local_rank, false);
      }
      for (auto& [local_rank, process] : nodes_[0].processes) set_stopped(0, local_rank, false);
      step();
    }
  }
  bool is_over() const { return is_over_; }
  bool everybody_runs() const {
    int running = 0;
    for (const Node& node : nodes_)
      for (const auto& [local_rank, process] : node.processes)
        running += process.state == Process::State::kRunning && is_current(process) ? 1 : 0;
    return first_ && running == std::min(layout_.size(), options_.workers_max) &&
           running == static_cast<int>(first_->slots_by_rank().size());
  }
  std::int64_t epochs() const { return epoch_; }

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int count() const { return static_cast<int>(nodes_.size()); }
  int slots_of(int node) const { return layout_.workers[index(node)]; }
  int first_slot(int node) const {
    NodeLayout layout = layout_;
    layout.node = node;
    return layout.first_rank();
  }
  bool is_current(const Process& process) const { return process.epoch == epoch_; }
  StoreServer& store_of(int node) { return node == 0 ? *store_ : *nodes_[index(node)].store; }

  void begin_node(int number, bool has_begun) {
    Node& node = nodes_[index(number)];
    node.store = StoreServer::create("a launcher").value();
    node.link = std::make_unique<NodeLinkInTest>();
    NodeLayout layout = layout_;
    layout.node = number;
    node.elastic = std::make_unique<OtherElasticNode>(layout, *node.store, *node.link, has_begun);
  }

  void start(int node, int local_rank, int number) {
    auto& processes = nodes_[index(node)].processes;
    ASSERT_FALSE(processes.contains(local_rank)) << "the slot has a worker already";
    processes[local_rank] = {.number = number, .slot = first_slot(node) + local_rank, .node = node};
  }

  // A process has ended and was reaped by its launcher.
  void end(int node, int local_rank) {
    Node& one = nodes_[index(node)];
    const int slot = first_slot(node) + local_rank;
    one.processes.erase(local_rank);
    if (node == 0) return first_->worker_ended(local_rank, false, "a worker", now_);
    one.elastic->worker_ended(local_rank, false, "a worker", now_);
    send_to_0(node, WorkerExit{static_cast<std::uint32_t>(slot), "a worker", false});
  }
  void set_stopped(int node, int local_rank, bool is_stopped) {
    Process& process = nodes_[index(node)].processes.at(local_rank);
    if (std::exchange(process.is_stopped, is_stopped) == is_stopped) return;
    ElasticNode& elastic =
        node == 0 ? static_cast<ElasticNode&>(*first_) : *nodes_[index(node)].elastic;
    if (is_stopped)
      elastic.worker_stopped(local_rank, now_);
    else
      elastic.worker_continued(local_rank);
  }

  void send_to_0(int node, const NodeMessage& message) {
    nodes_[index(node)].to_node_0.emplace_back(now_ + milliseconds(between(0, 50)), message);
  }
  void lose(int number) {
    Node& node = nodes_[index(number)];
    if (!node.is_connected) return;
    node.is_connected = node.node_0_knows = false;
    node.to_node.clear();
    node.to_node_0.clear();
  }
  // The launcher is killed, or has seen that the connection has ended: its
  // workers end with it.
  void end_node(int number) {
    Node& node = nodes_[index(number)];
    node.runs = false;
    node.processes.clear();
  }
  void come_back(int number) {
    Node& node = nodes_[index(number)];
    // Node 0 accepts a node again when it knows that the former connection has
    // ended.
    if (node.is_connected || node.runs || !node.node_0_knows || !first_) return;
    node.runs = node.is_connected = true;
    leaving_.erase(number);
    begin_node(number, true);
    change(number, true);
  }
  void change(int number, bool is_here, bool has_begun = false) {
    NodeNews news;
    news.changes.push_back(
        {.node = number, .is_here = is_here, .has_begun = has_begun, .why = "gone"});
    first_->take_news(news, now_);
    if (is_here)
      known_nodes_.insert(number);
    else
      known_nodes_.erase(number);
    expected_.erase(number);
  }

  bool is_taking_over() const { return !first_ || !told_nobody_is_expected_; }
  // Node 0's launcher is killed, and with it the Store and all messages on
  // their way.
  void lose_first() {
    if (is_taking_over()) return;
    first_.reset();
    store_.reset();
    link_.told.clear();
    first_returns_at_ = now_ + milliseconds(between(0, 1500));
    for (Node& node : nodes_) {
      node.to_node.clear();
      node.to_node_0.clear();
      if (!node.is_connected) node.node_0_knows = true;
      node.is_connected = false;
    }
    nodes_[0].is_connected = true;
  }
  // The driver starts another launcher in place of the lost one.
  void replace_first() {
    if (first_ || now_ < first_returns_at_) return;
    store_ = StoreServer::create("the launcher").value();
    ++stores_;
    const Replacement replacement{.number = static_cast<std::uint32_t>(stores_),
                                  .epoch = static_cast<std::uint32_t>(known_epoch_),
                                  .workers = link_.start->workers,
                                  .nodes = {known_nodes_.begin(), known_nodes_.end()}};
    options_.workers = layout_.size();
    first_.emplace(options_, layout_, *store_, &link_, now_, replacement);
    expected_ = known_nodes_;
    known_nodes_.clear();
    first_waits_until_ = now_ + kReplacementTime;
    told_nobody_is_expected_ = false;
  }
  // The launcher of a node has waited for node 0, and has found the new one.
  void find_node_0(int number) {
    Node& node = nodes_[index(number)];
    if (!expected_.contains(number)) return;
    if (!node.runs || between(0, 3) == 0) return;
    node.is_connected = true;
    change(number, true, true);
    NodeNews news;
    news.node_0_is_back = true;
    node.elastic->take_news(news, now_);
  }
  void tell_if_nobody_is_expected() {
    if (told_nobody_is_expected_ || (now_ < first_waits_until_ && !expected_.empty())) return;
    told_nobody_is_expected_ = true;
    for (const int late : std::exchange(expected_, {})) end_node(late);
    NodeNews news;
    news.nobody_is_expected = true;
    first_->take_news(news, now_);
  }
  void add_node() {
    layout_.workers.push_back(between(1, 2));
    link_.start->workers.push_back(static_cast<std::uint32_t>(layout_.workers.back()));
    nodes_.emplace_back();
    nodes_.back().runs = nodes_.back().is_connected = true;
    begin_node(count() - 1, true);
    change(count() - 1, true);
  }

  void fault() {
    const int number = between(0, count() - 1);
    Node& node = nodes_[index(number)];
    const int local_rank = between(0, std::max(slots_of(number) - 1, 0));
    const bool has_process = node.processes.contains(local_rank);
    switch (between(0, has_driver_ ? 10 : 8)) {
      case 0:
      case 1:
      case 2:
        if (has_process && node.runs) end(number, local_rank);
        return;
      case 3:
        if (has_process && node.runs) set_stopped(number, local_rank, between(0, 2) == 0);
        return;
      case 4:  // the launcher is killed
        if (number == 0) return;
        lose(number);
        return end_node(number);
      case 5:  // the network is cut: both sides notice it later
        if (number > 0) lose(number);
        return;
      case 6:
        if (number > 0) come_back(number);
        return;
      case 7:
        if (number > 0 && node.is_connected && leaving_.insert(number).second)
          (void)node.elastic->leave(now_ + seconds(1'000'000));
        return;
      case 8:
        if (layout_.size() < 8 && !is_taking_over()) add_node();
        return;
      default:
        lose_first();
    }
  }

  // One event of each kind may happen.
  void step() {
    now_ += milliseconds(between(1, 200));
    replace_first();
    for (int number = 1; number < count() && first_; ++number) find_node_0(number);
    if (first_) tell_if_nobody_is_expected();
    for (int number = 1; number < count(); ++number) step_of_node(number);
    advance_node_0();
    for (int number = 0; number < count(); ++number)
      for (auto& [local_rank, process] : nodes_[index(number)].processes)
        if (!process.is_stopped && between(0, 2) == 0) step_of(process);
    check();
  }

  void step_of_node(int number) {
    Node& node = nodes_[index(number)];
    if (first_ && !node.is_connected && !node.node_0_knows && between(0, 5) == 0) {
      node.node_0_knows = true;
      change(number, false);
    }
    const bool waits_for_node_0 = (first_ ? expected_ : known_nodes_).contains(number);
    if (!node.is_connected && node.runs && !waits_for_node_0 && between(0, 5) == 0)
      end_node(number);
    if (!node.runs || !node.is_connected) return;
    take(node.to_node_0, [this](const NodeNews& news) { first_->take_news(news, now_); });
    take(node.to_node, [&](const NodeNews& news) { node.elastic->take_news(news, now_); });
    const ElasticOrders orders = node.elastic->advance(now_);
    for (const auto& [local_rank, number_of_worker] : orders.starts)
      start(number, local_rank, number_of_worker);
    for (const int local_rank : orders.kills)
      if (node.processes.contains(local_rank)) end(number, local_rank);
    for (auto& [to, message] : std::exchange(node.link->told, {})) send_to_0(number, message);
    // A node that leaves ends when its workers have ended.
    if (!node.elastic->is_over() || !node.to_node_0.empty()) return;
    lose(number);
    end_node(number);
  }
  void take(std::deque<std::pair<TimePoint, NodeMessage>>& messages,
            const std::function<void(const NodeNews&)>& taker) const {
    while (!messages.empty() && messages.front().first <= now_) {
      NodeNews news;
      if (const auto* exit = std::get_if<WorkerExit>(&messages.front().second))
        news.exits.push_back(*exit);
      else
        news.messages.push_back(messages.front().second);
      messages.pop_front();
      taker(news);
    }
  }

  void advance_node_0() {
    if (!first_) return;
    known_epoch_ = std::max(known_epoch_, epoch_);
    const ElasticOrders orders = first_->advance(now_);
    for (auto& [to, message] : std::exchange(link_.told, {}))
      for (int number = 1; number < count(); ++number)
        if (nodes_[index(number)].is_connected && (to == -1 || to == number))
          nodes_[index(number)].to_node.emplace_back(now_ + milliseconds(between(0, 50)), message);
    if (orders.group_formed) {
      epoch_ = first_->epoch();
      check_new_group();
    }
    for (const auto& [local_rank, number] : orders.starts) start(0, local_rank, number);
    for (const int local_rank : orders.kills)
      if (nodes_[0].processes.contains(local_rank)) end(0, local_rank);
    is_over_ = is_over_ || !orders.end.empty();
  }

  // Whether it can reach the Store that node 0 has now.
  bool can_reach_store(const Process& process) const {
    if (!first_) return false;
    return process.node == 0 || nodes_[index(process.node)].is_connected;
  }
  void step_of(Process& process) {
    switch (process.state) {
      case Process::State::kLoading:
        return ask(process);
      case Process::State::kAsking:
        return process.store == stores_ ? take_rank(process) : ask(process);
      case Process::State::kForming:
        return form(process);
      case Process::State::kRunning:
        return train(process);
    }
  }
  void ask(Process& process) {
    process.state = Process::State::kAsking;
    if (!can_reach_store(process)) return;
    process.store = stores_;
    const keys::RankRequest request{.left = process.epoch,
                                    .state_epoch = process.state_epoch,
                                    .knows_state = process.knows_state};
    ASSERT_TRUE(store_->set(keys::rank_wanted(process.number), request.encode()).ok());
  }
  void take_rank(Process& process) {
    if (!can_reach_store(process)) return;
    const std::string answer = keys::rank_given(process.number, process.epoch);
    const auto bytes = store_->bytes_at(answer);
    if (!bytes) return;
    store_->remove(answer);
    const keys::RankRecord record = keys::RankRecord::decode(*bytes).value();
    ASSERT_EQ(first_->slots_by_rank().at(static_cast<std::size_t>(record.rank)), process.slot);
    ASSERT_EQ(record.epoch, epoch_);
    process.epoch = record.epoch;
    process.rank = record.rank;
    process.knows_state = process.knows_state || record.has_state;
    process.state = Process::State::kForming;
    process.waits_for_local_ranks = between(0, 1) == 0;
  }
  std::string failure_key(std::int64_t epoch) const {
    return keys::epoch_prefix(epoch) + keys::complete(keys::kFirstEpoch);
  }
  void leave_group(Process& process) { ask(process); }
  void fail_formation(Process& process) {
    for (StoreServer* store : {&store_of(process.node), store_.get()})
      if (store != store_.get() || can_reach_store(process))
        (void)store->set(failure_key(process.epoch), keys::text_value("failed"));
    leave_group(process);
  }
  // Returns the members of this epoch that run, wherever they are.
  std::vector<Process*> members_of(std::int64_t epoch) {
    std::vector<Process*> members;
    for (Node& node : nodes_)
      for (auto& [local_rank, process] : node.processes)
        if (process.epoch == epoch && process.state >= Process::State::kForming)
          members.push_back(&process);
    return members;
  }
  void form(Process& process) {
    const auto members = members_of(process.epoch);
    // First it waits for all members in the Store of the job, which may be
    // lost.
    const bool all_have_come = static_cast<int>(members.size()) == sizes_.at(process.epoch);
    if (process.store != stores_ && (!process.waits_for_local_ranks || !all_have_come))
      return fail_formation(process);
    if (process.waits_for_local_ranks) {
      if (store_of(process.node).text_at(failure_key(process.epoch)))
        return fail_formation(process);
      // It waits for the ranks that its node has in this epoch.
      int local = 0;
      for (const Process* other : members) local += other->node == process.node ? 1 : 0;
      if (local < local_sizes_.at({process.epoch, process.node})) return;
      process.waits_for_local_ranks = false;
    }
    if (can_reach_store(process) && store_->text_at(failure_key(process.epoch)))
      return fail_formation(process);
    if (!all_have_come) return;
    const bool all_have_local_ranks = std::ranges::none_of(
        members, [](const Process* member) { return member->waits_for_local_ranks; });
    if (!all_have_local_ranks) return;
    for (Process* member : members) member->state = Process::State::kRunning;
  }
  // A call fails if a member has ended. At a commit, all members leave the
  // group together if rank 0 sees that a change is announced.
  void train(Process& process) {
    const auto members = members_of(process.epoch);
    if (static_cast<int>(members.size()) < sizes_.at(process.epoch)) return leave_group(process);
    const bool is_cut = std::ranges::any_of(members, [this](const Process* member) {
      return can_reach_store(*member) != can_reach_store(*members_of(member->epoch).front());
    });
    if (is_cut) return leave_group(process);
    const bool is_stopped =
        std::ranges::any_of(members, [](const Process* member) { return member->is_stopped; });
    if (process.rank != 0 || is_stopped) return;
    ASSERT_EQ(process.progress, progress_) << "steps are lost";
    ++progress_;
    for (Process* member : members) {
      member->state_epoch = member->epoch;  // rank 0 has sent the state
      member->progress = progress_;
    }
    const auto announced = keys::epoch_prefix(process.epoch) + keys::change_announced();
    const bool has_lost_store = !first_ || process.store != stores_;
    if (!has_lost_store && (!can_reach_store(process) || !store_->has_key_under(announced))) return;
    for (Process* member : members) leave_group(*member);
  }

  void check_new_group() {
    const auto& slots = first_->slots_by_rank();
    ASSERT_EQ(std::set<int>(slots.begin(), slots.end()).size(), slots.size());
    ASSERT_GE(static_cast<int>(slots.size()), options_.workers_min);
    sizes_[epoch_] = static_cast<int>(slots.size());
    for (int node = 0; node < count(); ++node) local_sizes_[{epoch_, node}] = 0;
    std::optional<bool> rank_0_has_state;  // empty: it has just ended
    bool somebody_has_state = false;
    for (int node = 0; node < count(); ++node) {
      for (const auto& [local_rank, process] : nodes_[index(node)].processes) {
        if (!can_reach_store(process) || !nodes_[index(node)].node_0_knows) continue;
        ASSERT_NE(process.state, Process::State::kRunning) << "the fence: it is in its old group";
        // Without the Store, no group can be completed.
        ASSERT_TRUE(process.state != Process::State::kForming || process.store != stores_)
            << "the fence: it forms its old group";
        somebody_has_state = somebody_has_state || process.state_epoch > 0;
        if (slots[0] == process.slot) rank_0_has_state = process.state_epoch > 0;
      }
    }
    for (int node = 0; node < count(); ++node)
      for (const int slot : slots)
        if (slot >= first_slot(node) && slot < first_slot(node) + slots_of(node))
          ++local_sizes_[{epoch_, node}];
    const bool all_are_reachable = std::ranges::all_of(
        nodes_, [](const Node& node) { return node.is_connected && node.node_0_knows; });
    ASSERT_TRUE(epoch_ == 1 || !all_are_reachable ||
                rank_0_has_state.value_or(somebody_has_state) == somebody_has_state);
  }
  // Of all workers that node 0 can reach, only one group trains.
  void check() const {
    std::set<std::int64_t> training;
    for (const Node& node : nodes_)
      for (const auto& [local_rank, process] : node.processes)
        if (process.state == Process::State::kRunning && can_reach_store(process))
          training.insert(process.epoch);
    ASSERT_LE(training.size(), 1U) << "two groups train at once";
  }

  std::mt19937 random_;
  TimePoint now_ = TimePoint{} + seconds(1000);
  Membership::Options options_;
  NodeLayout layout_;
  std::unique_ptr<StoreServer> store_ = StoreServer::create("the launcher").value();
  NodeLinkInTest link_;
  std::optional<FirstElasticNode> first_;
  std::vector<Node> nodes_;
  std::set<int> leaving_;
  std::int64_t epoch_ = 0;
  std::int64_t progress_ = 0;  // the steps of the training
  bool has_driver_ = false;    // node 0 has no workers, and its launcher is replaced
  int stores_ = 0;             // how many launchers of node 0 were lost, and their Stores
  TimePoint first_returns_at_{};
  TimePoint first_waits_until_{};
  bool told_nobody_is_expected_ = true;
  std::int64_t known_epoch_ = 0;  // what the driver knows
  std::set<int> known_nodes_;
  std::set<int> expected_;                                   // by the new launcher of node 0
  std::map<std::int64_t, int> sizes_;                        // by epoch
  std::map<std::pair<std::int64_t, int>, int> local_sizes_;  // by epoch and node
  std::map<int, int> numbers_;                               // of the members, by slot
  bool is_over_ = false;
};

TEST(SimulatedJobs, KeepTheRulesAndComeTogetherAgain) {
  const char* given = std::getenv("FARANDOLE_TEST_SEEDS");
  const unsigned seeds = given != nullptr ? static_cast<unsigned>(std::stoul(given)) : 2000;
  unsigned complete = 0;
  std::int64_t epochs = 0;
  for (unsigned seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    SimulatedJob job(seed);
    job.run(600);
    job.calm_down();
    EXPECT_TRUE(job.is_over() || job.everybody_runs());
    complete += job.everybody_runs() ? 1 : 0;
    epochs += job.epochs();
  }
  EXPECT_GT(complete, seeds / 4) << "too few jobs survive to say anything";
  EXPECT_GT(epochs, 5 * static_cast<std::int64_t>(seeds));
}

}  // namespace
}  // namespace farandole
