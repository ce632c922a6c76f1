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
#include "nodes/node_link.h"
#include "nodes/roll_call.h"

namespace farandole {

class FirstNode final : public NodeLink {
 public:
  // `context` is borrowed. Errors: kStop.
  static Result<std::unique_ptr<FirstNode>> create(const TlsContext& context,
                                                   const NodeOptions& options, TimePoint now);

  Result<NodeNews> advance(TimePoint now) override;
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
  std::optional<bool> outcome() const override { return roll_.outcome(); }
  std::optional<int> job_exit_code() const override { return std::nullopt; }
  int descriptor() const override { return events_.descriptor(); }
  TimePoint deadline() const override;

 private:
  // A launcher that has connected.
  struct Guest {
    NodeChannel channel;
    TimePoint leave_by;            // applies until it is accepted, and after a rejection
    int node = -1;                 // −1 until it is accepted, and after a rejection
    std::optional<Hello> hello{};  // who it is
    bool rejected = false;
    bool waits_to_send = false;
    Silence silence;  // begins when it is accepted
  };

  FirstNode(const TlsContext& context, const NodeOptions& options, EventSet events, TimePoint now);
  Status listen(TimePoint now, NodeNews& news);
  Status listen_at_endpoint(TimePoint now, NodeNews& news);
  Status listen_at_free_port(TimePoint now);
  void tell_who_is_expected(TimePoint now, NodeNews& news);
  Status open(ListenOptions options);
  Status accept(TimePoint now, NodeNews& news);
  Status serve_guests(TimePoint now, NodeNews& news);
  Status handle(Guest& guest, const NodeMessage& message, TimePoint now, NodeNews& news);
  Status greet(Guest& guest, TimePoint now, NodeNews& news);
  void welcome(Guest& guest, NodeNews& news);
  void reject(Guest& guest, const std::string& why, TimePoint now);
  Status update_interest(std::uint64_t id, Guest& guest);
  bool may_not_be_silent(const Guest& guest) const {
    return options_.is_elastic && start_ && guest.node >= 0 && !roll_.has_ended(guest.node);
  }
  void check_silence(Guest& guest, bool has_heard, TimePoint now);
  void send(std::uint64_t id, Guest& guest, const NodeMessage& message);
  Status remove_if_gone(std::map<std::uint64_t, Guest>::iterator guest, TimePoint now,
                        NodeNews& news);
  void fail(int node, const NodeFailure& failure, NodeNews* news);
  NodeFailure named(int node, NodeFailure failure) const;  // `why` begins with the node's name
  NodeFailure failure_of_end(int node, int exit_code) const;
  void end(int node, const Ended& ended, NodeNews& news);
  void begin_if_complete();
  void set_master_port();
  std::vector<std::string> addresses_of_nodes() const;
  void tell_who_is_missing(NodeNews& news);
  void send_to_nodes(const NodeMessage& message, int except = -1);
  Status give_up(Status why);
  std::string last_rejection_text() const;
  std::string timeout_text() const;

  const TlsContext& context_;
  NodeOptions options_;
  EventSet events_;
  TimePoint start_deadline_;
  TimePoint next_look_up_;
  TimePoint tells_from_;  // from then on, notices say which nodes are missing
  std::unique_ptr<TcpListener> listener_;
  RollCall roll_;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_guest_ = 1;  // 0 is the listener
  std::vector<int> told_missing_;
  bool told_unknown_name_ = false;
  bool told_rejection_ = false;
  std::vector<bool> failing_;  // for each node: whether the others know that it fails
  std::optional<Start> start_;
  // A replacement of a lost launcher:
  TimePoint listens_again_until_;
  TimePoint expects_until_;  // nodes that have begun
  bool told_nobody_is_expected_ = false;
};

}  // namespace farandole
