// OtherNode: the end of the link at every node except node 0. It dials the job's endpoint until
// node 0 answers, and then waits for node 0's messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "network/tcp/dialer.h"
#include "network/tcp/event_set.h"
#include "nodes/heartbeat.h"
#include "nodes/node_channel.h"
#include "nodes/node_link.h"

namespace farandole {

class OtherNode final : public NodeLink {
 public:
  // `context` is borrowed. Errors: kStop.
  static Result<std::unique_ptr<OtherNode>> create(const TlsContext& context,
                                                   const NodeOptions& options, TimePoint now);

  Result<NodeEvents> advance(TimePoint now) override;
  std::vector<SocketAddress> listening_addresses() const override { return {}; }
  Endpoint endpoint() const override { return endpoint_; }
  const std::optional<Start>& start_message() const override { return start_; }
  void report_exit(const WorkerExit& exit) override { tell(exit); }
  void report_failing(const NodeFailure& failure) override;
  void report_end(int exit_code, const std::vector<std::string>& report) override;
  void tell(const NodeMessage& message) override;
  void tell_node(int /*node*/, const NodeMessage& message) override { tell(message); }
  bool is_connected(int /*node*/) const override { return channel_ != nullptr; }
  bool has_lost_node_0() const override { return has_lost_node_0_; }
  std::optional<bool> outcome() const override { return outcome_; }
  std::optional<JobOver> job_over() const override { return job_over_; }
  int descriptor() const override { return events_.descriptor(); }
  TimePoint deadline() const override;

 private:
  OtherNode(const TlsContext& context, const NodeOptions& options, EventSet events, TimePoint now);
  Status connect(TimePoint now, NodeEvents& news);
  Status begin_dialing(TimePoint now, NodeEvents& news);
  void schedule_dial(const Status& why, bool is_rejected, TimePoint now, NodeEvents& news);
  Status receive(TimePoint now, NodeEvents& news);
  Status handle(const NodeMessage& message, NodeEvents& news);
  void handle_loss(TimePoint now, NodeEvents& news);
  void give_up_node_0(NodeEvents& news);
  Status update_interest();
  bool has_heartbeat() const {
    return options_.is_elastic && channel_ != nullptr && start_ && !outcome_;
  }
  Status timeout_error() const;

  const TlsContext& context_;
  NodeOptions options_;
  Endpoint endpoint_;  // the endpoint of options_, or the address that was reached
  EventSet events_;
  TimePoint start_deadline_;
  TimePoint next_dial_;
  std::unique_ptr<Dialer> dialer_;
  std::unique_ptr<NodeChannel> channel_;
  bool waits_to_send_ = false;
  Heartbeat heartbeat_;  // of channel_; used while has_heartbeat()
  Status last_error_;    // of dialing
  std::optional<TimePoint> rejected_since_;
  TimePoint error_notice_time_;
  bool has_shown_waiting_ = false;
  bool has_shown_error_ = false;
  std::vector<std::uint32_t> missing_nodes_;
  std::optional<Start> start_;
  std::optional<bool> outcome_;
  std::optional<JobOver> job_over_;
  bool has_lost_node_0_ = false;
  // Set while a new launcher may still replace the lost launcher of node 0.
  std::optional<TimePoint> node_0_return_deadline_;
  std::string why_lost_;
  std::optional<NodeEnded> node_ended_;  // the message that was sent to node 0
  std::uint64_t next_id_ = 0;
};

}  // namespace farandole
