#include "nodes/other_node.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "network/tcp/host_name.h"
#include "nodes/roll_call.h"

namespace farandole {
namespace {

constexpr auto kDialInterval = std::chrono::milliseconds(500);
constexpr auto kRedialInterval = std::chrono::milliseconds(50);  // while node 0 has no launcher
constexpr auto kDialTimeout = std::chrono::seconds(15);          // for trying all addresses once
// A process at the endpoint may reject us because it belongs to an earlier job that is about to
// end, or because it has another secret. After this time, we conclude that it has another secret.
constexpr auto kRejectedTimeout = std::chrono::seconds(10);
// When the start timeout is over, node 0 says which nodes are missing. This launcher waits
// kLastMessageTimeout longer for that message.
constexpr auto kLastMessageTimeout = std::chrono::seconds(5);

// Returns the text of the endpoint, with a remark if the endpoint means this host. Unless node 0 is
// on this host, too, such an endpoint is a mistake. If a driver has told us the addresses of node
// 0, returns the name of node 0's host and these addresses.
std::string endpoint_text(const NodeOptions& options) {
  const Endpoint& endpoint = options.endpoint;
  if (!options.addresses.empty()) {
    std::string addresses;
    for (const SocketAddress& node_0_address : options.addresses)
      addresses.append(addresses.empty() ? "" : ", ").append(node_0_address.text());
    return format_text("{} ({})", endpoint.host, addresses);
  }
  const auto address = SocketAddress::parse_ip(endpoint.host);
  const bool is_this_host =
      endpoint.host == "localhost" || (address.ok() && address->is_loopback());
  return endpoint.text() + (is_this_host ? " (this host)" : "");
}

// Whether a start message has either no ports for TensorFlow, or the ports of all ranks.
bool has_all_ports(const Start& start) {
  const std::size_t ports = start.tensorflow_ports.size();
  if (ports == 0) return start.addresses.empty();
  return start.addresses.size() == start.workers.size() &&
         ports == std::accumulate(start.workers.begin(), start.workers.end(), std::size_t{0});
}

bool is_for_launcher(const NodeMessage& message) {
  return std::holds_alternative<WorkersWanted>(message) ||
         std::holds_alternative<StacksWanted>(message) ||
         std::holds_alternative<TimelineWanted>(message) ||
         std::holds_alternative<WorkerStart>(message) ||
         std::holds_alternative<WorkerKill>(message) ||
         std::holds_alternative<GroupFormed>(message) ||
         std::holds_alternative<MemberLost>(message) ||
         std::holds_alternative<NoMoreWorkers>(message);
}

}  // namespace

OtherNode::OtherNode(const TlsContext& context, const NodeOptions& options, EventSet events,
                     TimePoint now)
    : context_(context),
      options_(options),
      endpoint_(options.endpoint),
      events_(std::move(events)),
      start_deadline_(now + options.start_timeout),
      next_dial_(now),
      heartbeat_(now),
      error_notice_time_(now + kRejectedTimeout) {}

Result<std::unique_ptr<OtherNode>> OtherNode::create(const TlsContext& context,
                                                     const NodeOptions& options, TimePoint now) {
  FARANDOLE_TRY_ASSIGN(EventSet events, EventSet::make());
  return std::unique_ptr<OtherNode>(new OtherNode(context, options, std::move(events), now));
}

Result<NodeEvents> OtherNode::advance(TimePoint now) {
  NodeEvents news;
  if (channel_ == nullptr && node_0_return_deadline_) {
    // While node 0 has no launcher, no error is final.
    (void)connect(now, news);
  } else if (channel_ == nullptr && !start_) {
    FARANDOLE_TRY(connect(now, news));
  }
  if (channel_ != nullptr) FARANDOLE_TRY(receive(now, news));
  if (node_0_return_deadline_ && now >= *node_0_return_deadline_) give_up_node_0(news);
  const TimePoint deadline =
      start_deadline_ + (channel_ == nullptr ? Duration() : kLastMessageTimeout);
  if (!start_ && now >= deadline) return timeout_error();
  return news;
}

Status OtherNode::connect(TimePoint now, NodeEvents& news) {
  if (dialer_ == nullptr) FARANDOLE_TRY(begin_dialing(now, news));
  if (dialer_ == nullptr) return {};
  auto connection = dialer_->try_connect(now);
  if (!connection.ok()) {
    const bool is_rejected = dialer_->was_rejected();
    events_.remove(dialer_->descriptor());
    dialer_.reset();
    schedule_dial(connection.status(), is_rejected, now, news);
    if (rejected_since_ && now >= *rejected_since_ + kRejectedTimeout)
      return Status::fix_call(format_text(
          "node 0 at {} rejects this launcher: the file with the secret must be the same on all "
          "hosts, and the endpoint must be that of this job ({})",
          options_.endpoint.text(), last_error_.message()));
    return {};
  }
  if (*connection == nullptr) return {};
  events_.remove(dialer_->descriptor());
  dialer_.reset();
  rejected_since_.reset();
  channel_ = std::make_unique<NodeChannel>(*std::move(connection));
  heartbeat_ = Heartbeat(now);
  if (!options_.addresses.empty()) {
    FARANDOLE_TRY_ASSIGN(const auto node_0_address, peer_address_of(channel_->descriptor()));
    endpoint_ = {node_0_address.ip_text(), node_0_address.port};
  }
  waits_to_send_ = false;
  FARANDOLE_TRY(events_.add(channel_->descriptor(), next_id_++, false));
  Hello hello = hello_of(options_);
  hello.has_begun = node_0_return_deadline_.has_value();
  channel_->send(hello);
  return {};
}

// Looks the name up each time, because it may not be known yet, or its address may change.
Status OtherNode::begin_dialing(TimePoint now, NodeEvents& news) {
  if (now < next_dial_) return {};
  auto resolved = options_.addresses.empty()
                      ? look_up_host(options_.endpoint.host, options_.endpoint.port)
                      : Result<std::vector<SocketAddress>>(options_.addresses);
  if (!resolved.ok()) {
    schedule_dial(Status::retry(format_text("the name {} is not known: {}", options_.endpoint.host,
                                            resolved.status().message())),
                  false, now, news);
    return {};
  }
  const Link link{.dialer = {Role::kAgent, static_cast<std::uint32_t>(options_.node)},
                  .listener = {Role::kLauncher, 0}};
  const DialOptions dial_options{.addresses = *std::move(resolved),
                                 .link = link,
                                 .rounds = 1,
                                 .tcp = tcp_options(options_.is_elastic)};
  FARANDOLE_TRY_ASSIGN(dialer_,
                       Dialer::start(context_, dial_options, now,
                                     std::min(now + kDialTimeout,
                                              node_0_return_deadline_.value_or(start_deadline_))));
  return events_.add(dialer_->descriptor(), next_id_++, false);
}

void OtherNode::schedule_dial(const Status& why, bool is_rejected, TimePoint now,
                              NodeEvents& news) {
  last_error_ = why;
  next_dial_ = now + (node_0_return_deadline_ ? kRedialInterval : kDialInterval);
  if (node_0_return_deadline_) return;
  if (!is_rejected) rejected_since_.reset();
  if (is_rejected && !rejected_since_) rejected_since_ = now;
  const std::string waiting_notice =
      waiting_text({0}, options_.nodes) + " at " + endpoint_text(options_);
  if (!std::exchange(has_shown_waiting_, true)) news.notices.push_back(waiting_notice);
  // Do not immediately show that node 0 does not listen, because this is normal at the start.
  if (!is_rejected && now < error_notice_time_) return;
  if (!std::exchange(has_shown_error_, true))
    news.notices.push_back(format_text("{}: {}", waiting_notice, why.message()));
}

Status OtherNode::receive(TimePoint now, NodeEvents& news) {
  for (const NodeMessage& message : channel_->advance()) FARANDOLE_TRY(handle(message, news));
  if (has_heartbeat() && heartbeat_.is_due(now)) tell(HeartbeatMessage());
  if (!channel_->status().ok()) {
    handle_loss(now, news);
    return {};
  }
  return update_interest();
}

Status OtherNode::handle(const NodeMessage& message, NodeEvents& news) {
  if (const auto* rejection = std::get_if<NodeRejection>(&message); rejection != nullptr && !start_)
    return Status::fix_call(escape_controls(rejection->why));
  if (std::holds_alternative<NodeRejection>(message) && node_0_return_deadline_)
    give_up_node_0(news);
  if (std::holds_alternative<Start>(message) && node_0_return_deadline_) {
    node_0_return_deadline_.reset();
    news.node_0_is_back = true;
    if (node_ended_) tell(*node_ended_);
  }
  if (const auto* missing_nodes = std::get_if<MissingNodes>(&message);
      missing_nodes != nullptr && missing_nodes->missing != missing_nodes_) {
    missing_nodes_ = missing_nodes->missing;
    if (!missing_nodes_.empty() && missing_nodes_.back() < kNodesMax)
      news.notices.push_back(
          waiting_text({missing_nodes_.begin(), missing_nodes_.end()}, options_.nodes));
  }
  if (const auto* start = std::get_if<Start>(&message); start != nullptr && !start_) {
    const auto node = static_cast<std::size_t>(options_.node);
    // If the job is a running elastic job, the message lists this node and all nodes that joined
    // before it.
    const bool is_expected_job =
        start->has_begun ? node < start->workers.size()
                         : start->workers.size() == static_cast<std::size_t>(options_.nodes);
    if (!is_expected_job ||
        start->workers.at(node) != static_cast<std::uint32_t>(options_.workers) ||
        !has_all_ports(*start))
      return Status::stop("node 0 has started another job than this one");
    start_ = *start;
  }
  if (const auto* failed_node = std::get_if<FailedNode>(&message)) {
    news.failures.push_back(*failed_node);
    news.failures.back().failure.why = escape_controls(failed_node->failure.why);
  }
  if (start_ && is_for_launcher(message)) news.messages.push_back(message);
  if (const auto* job_over = std::get_if<JobOver>(&message)) {
    job_over_ = *job_over;
    job_over_->exit_code &= 0xFFU;
    outcome_ = job_over_->exit_code == 0;
  }
  return {};
}

// If the connection is lost before the start, dials again, because node 0 may be started again.
// After the end of the job, the loss is no failure, because node 0 may leave then.
void OtherNode::handle_loss(TimePoint now, NodeEvents& news) {
  const Status why = channel_->status();
  events_.remove(channel_->descriptor());
  channel_.reset();
  if (!start_) {
    schedule_dial(why, false, now, news);
  } else if (!outcome_) {
    why_lost_ = why.message();
    // Only a driver replaces a lost launcher of node 0.
    const bool may_return = options_.is_elastic && !options_.addresses.empty();
    if (!node_0_return_deadline_)
      node_0_return_deadline_ = may_return ? now + kNode0ReturnTimeout : now;
    next_dial_ = now;
    if (!may_return) give_up_node_0(news);
  }
}

void OtherNode::give_up_node_0(NodeEvents& news) {
  node_0_return_deadline_.reset();
  if (dialer_ != nullptr) events_.remove(dialer_->descriptor());
  dialer_.reset();
  outcome_ = false;
  has_lost_node_0_ = true;
  news.failures.push_back({0,
                           {.why = format_text("the launcher of node 0 is gone: {}", why_lost_),
                            .ranks = start_->workers.front()}});
}

Status OtherNode::update_interest() {
  if (channel_->has_unsent() == waits_to_send_) return {};
  waits_to_send_ = channel_->has_unsent();
  return events_.change(channel_->descriptor(), next_id_++, waits_to_send_);
}

void OtherNode::tell(const NodeMessage& message) {
  if (channel_ == nullptr) return;
  channel_->send(message);
  // If this fails, the next advance() reports the error.
  (void)update_interest();
}

void OtherNode::report_failing(const NodeFailure& failure) {
  tell(FailedNode{static_cast<std::uint32_t>(options_.node), failure});
}

void OtherNode::report_end(int exit_code, const std::vector<std::string>& report) {
  node_ended_ = make_node_ended(exit_code, report);
  tell(*node_ended_);
}

Status OtherNode::timeout_error() const {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options_.start_timeout).count();
  if (!missing_nodes_.empty())
    return Status::stop(format_text("{} of {} did not come within {} s (--start-timeout)",
                                    node_list_text({missing_nodes_.begin(), missing_nodes_.end()}),
                                    options_.nodes, seconds));
  return Status::stop(format_text(
      "node 0 of {} was not reached at {} within {} s (--start-timeout); {} ({})", options_.nodes,
      endpoint_text(options_), seconds,
      options_.addresses.empty()
          ? "start the same command with --node 0 on the host of the endpoint"
          : "look for a firewall between the hosts, or choose --network-interfaces and --ports",
      last_error_.message()));
}

TimePoint OtherNode::deadline() const {
  if (node_0_return_deadline_ && channel_ == nullptr)
    return std::min(*node_0_return_deadline_,
                    dialer_ != nullptr ? dialer_->next_deadline() : next_dial_);
  if (start_)
    return std::min(has_heartbeat() ? heartbeat_.next_time() : TimePoint::max(),
                    node_0_return_deadline_.value_or(TimePoint::max()));
  if (channel_ != nullptr) return start_deadline_ + kLastMessageTimeout;
  const TimePoint dial_time = dialer_ != nullptr ? dialer_->next_deadline() : next_dial_;
  return std::min(dial_time, start_deadline_);
}

}  // namespace farandole
