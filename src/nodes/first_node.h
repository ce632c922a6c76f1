// FirstNode: node 0's end of the links between the launchers. It listens at the job's endpoint,
// waits for all nodes, and passes on what happens on each of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "network/tcp/event_set.h"
#include "network/tcp/tcp_listener.h"
#include "nodes/heartbeat.h"
#include "nodes/node_channel.h"
#include "nodes/node_layout.h"
#include "nodes/node_link.h"
#include "nodes/roll_call.h"

namespace farandole {

class FirstNode final : public NodeLink {
 public:
  // `context` is borrowed. Errors: kStop.
  static Result<std::unique_ptr<FirstNode>> create(const TlsContext& context,
                                                   const NodeOptions& options, TimePoint now);

  Result<NodeEvents> advance(TimePoint now) override;
  std::vector<SocketAddress> listening_addresses() const override;
  Endpoint endpoint() const override;
  const std::optional<Start>& start_message() const override { return start_; }
  void report_exit(const WorkerExit& exit) override;
  void report_failing(const NodeFailure& failure) override;
  void report_end(int exit_code, const std::vector<std::string>& report) override;
  void tell(const NodeMessage& message) override;
  void tell_node(int node, const NodeMessage& message) override;
  bool is_connected(int node) const override;
  bool has_lost_node_0() const override { return false; }
  std::optional<bool> outcome() const override { return roll_call_.outcome(); }
  std::optional<JobOver> job_over() const override { return std::nullopt; }
  int descriptor() const override { return events_.descriptor(); }
  TimePoint deadline() const override;

 private:
  // A launcher that has connected.
  struct ConnectedLauncher {
    NodeChannel channel;
    TimePoint leave_deadline;      // applies until the launcher is accepted, and after a rejection
    int node = -1;                 // −1 until the launcher is accepted, and after a rejection
    std::optional<Hello> hello{};  // empty until the launcher has sent it
    bool is_rejected = false;
    bool waits_to_send = false;
    Silence silence;  // counts from the time when the launcher is accepted
  };

  FirstNode(const TlsContext& context, const NodeOptions& options, EventSet events, TimePoint now);
  Status listen(TimePoint now, NodeEvents& news);
  Status listen_at_endpoint(TimePoint now, NodeEvents& news);
  Status listen_at_free_port(TimePoint now);
  void report_end_of_expectation(TimePoint now, NodeEvents& news);
  Status open(ListenOptions options);
  Status accept(TimePoint now, NodeEvents& news);
  Status serve_launchers(TimePoint now, NodeEvents& news);
  Status handle(ConnectedLauncher& launcher, const NodeMessage& message, TimePoint now,
                NodeEvents& news);
  Status handle_hello(ConnectedLauncher& launcher, TimePoint now, NodeEvents& news);
  void add_to_running_job(ConnectedLauncher& launcher, NodeEvents& news);
  void reject(ConnectedLauncher& launcher, const std::string& why, TimePoint now);
  Status update_interest(std::uint64_t id, ConnectedLauncher& launcher);
  bool must_send_heartbeats(const ConnectedLauncher& launcher) const {
    return options_.is_elastic && start_ && launcher.node >= 0 &&
           !roll_call_.has_ended(launcher.node);
  }
  void check_silence(ConnectedLauncher& launcher, bool got_message, TimePoint now);
  void send(std::uint64_t id, ConnectedLauncher& launcher, const NodeMessage& message);
  Status remove_if_gone(std::map<std::uint64_t, ConnectedLauncher>::iterator launcher,
                        TimePoint now, NodeEvents& news);
  void report_failure(int node, const NodeFailure& failure, NodeEvents* news);
  // Returns the failure with the node's name at the beginning of `why`.
  NodeFailure with_node_name(int node, NodeFailure failure) const;
  NodeFailure loss_of(int node, const std::string& why) const;
  NodeFailure failure_of_end(int node, int exit_code) const;
  void handle_end(int node, const NodeEnded& ended, NodeEvents& news);
  void begin_if_complete();
  void set_master_port();
  std::vector<std::string> addresses_of_nodes() const;
  void show_missing_nodes(NodeEvents& news);
  void send_to_nodes(const NodeMessage& message, int excluded_node = -1);
  Status give_up(Status why);
  std::string last_rejection_text() const;
  std::string timeout_text() const;

  const TlsContext& context_;
  NodeOptions options_;
  EventSet events_;
  TimePoint start_deadline_;
  TimePoint next_look_up_time_;
  TimePoint first_notice_time_;  // before this time, no notice says which nodes are missing
  std::unique_ptr<TcpListener> listener_;
  RollCall roll_call_;
  std::map<std::uint64_t, ConnectedLauncher> launchers_;
  std::uint64_t next_launcher_id_ = 1;  // 0 is the listener
  std::vector<int> shown_missing_nodes_;
  bool has_shown_unknown_name_ = false;
  bool has_shown_rejection_ = false;
  std::vector<bool> failed_nodes_;  // for each node: whether its failure was reported
  std::optional<Start> start_;
  // For a launcher that replaces a lost one:
  TimePoint listen_retry_deadline_;
  TimePoint expectation_deadline_;  // until then, nodes of the running job may join again
  bool has_reported_no_expected_nodes_ = false;
};

}  // namespace farandole
