#include "nodes/first_node.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "network/tcp/host_name.h"

namespace farandole {
namespace {

constexpr std::uint64_t kListenerId = 0;
// A driver starts all nodes itself, so they usually join soon. Only after this time, a notice about
// missing nodes is useful.
constexpr auto kNoticeDelayWithDriver = std::chrono::seconds(10);
constexpr auto kLookUpInterval = std::chrono::seconds(1);
// A launcher that replaces a lost one tries to listen at the same port. But the lost launcher may
// still have this port for a moment.
constexpr auto kListenRetryInterval = std::chrono::milliseconds(50);
constexpr auto kListenRetryTimeout = std::chrono::seconds(5);
// A launcher that has connected must send its Hello within this time.
constexpr auto kHelloTimeout = std::chrono::seconds(10);
// A rejected launcher has this time to read the reason.
constexpr auto kRejectionReadTimeout = std::chrono::seconds(5);

std::string seconds_text(Duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

std::optional<FailedNode> first_failure(const std::vector<NodeEnd>& ends) {
  auto failed_end = std::ranges::find_if(
      ends, [](const NodeEnd& end) { return end.exit_code != 0 && !end.report.empty(); });
  if (failed_end == ends.end())
    failed_end = std::ranges::find_if(ends, [](const NodeEnd& end) { return end.exit_code != 0; });
  if (failed_end == ends.end()) return std::nullopt;
  return FailedNode{.node = static_cast<std::uint32_t>(failed_end->node),
                    .failure = {.why = format_text("node {} has ended with exit code {}",
                                                   failed_end->node, failed_end->exit_code)}};
}

FirstNode::FirstNode(const TlsContext& context, const NodeOptions& options, EventSet events,
                     TimePoint now)
    : context_(context),
      options_(options),
      events_(std::move(events)),
      start_deadline_(now + options.start_timeout),
      next_look_up_time_(now),
      first_notice_time_(now + (options.listen_choice ? kNoticeDelayWithDriver : Duration())),
      roll_call_(hello_of(options), options.replaces),
      failed_nodes_(static_cast<std::size_t>(options.nodes), false),
      listen_retry_deadline_(now + kListenRetryTimeout),
      expectation_deadline_(now + kReplacementTimeout) {}

Result<std::unique_ptr<FirstNode>> FirstNode::create(const TlsContext& context,
                                                     const NodeOptions& options, TimePoint now) {
  FARANDOLE_TRY_ASSIGN(EventSet events, EventSet::make());
  return std::unique_ptr<FirstNode>(new FirstNode(context, options, std::move(events), now));
}

Status FirstNode::listen(TimePoint now, NodeEvents& news) {
  if (listener_ != nullptr || now < next_look_up_time_) return {};
  next_look_up_time_ = now + (options_.replaces ? kListenRetryInterval : kLookUpInterval);
  if (options_.listen_choice) return listen_at_free_port(now);
  return listen_at_endpoint(now, news);
}

// If the name of the endpoint is not known yet, a later call tries again.
Status FirstNode::listen_at_endpoint(TimePoint now, NodeEvents& news) {
  auto resolved = look_up_host(options_.endpoint.host, options_.endpoint.port);
  if (!resolved.ok() && resolved.status().code() == StatusCode::kRetry && now < start_deadline_) {
    if (!std::exchange(has_shown_unknown_name_, true))
      news.notices.push_back(
          format_text("node 0 cannot listen at {} yet: the name is not known: {}",
                      options_.endpoint.text(), resolved.status().message()));
    return {};
  }
  if (!resolved.ok())
    return Status::stop(format_text("node 0 cannot listen at {}: the name is not known: {}",
                                    options_.endpoint.text(), resolved.status().message()));
  FARANDOLE_TRY_ASSIGN(const auto interface_addresses, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(auto addresses,
                       own_addresses(options_.endpoint, *resolved, interface_addresses, "node 0"));
  if (is_only_loopback(options_.endpoint, addresses)) {
    return Status::fix_call(format_text(
        "node 0 cannot listen at {}: on this host, the name means {}, where other hosts cannot "
        "reach it; give an address of this host, or correct /etc/hosts",
        options_.endpoint.text(), addresses.front().ip_text()));
  }
  const Status opened = open({.addresses = std::move(addresses),
                              .port_first = options_.endpoint.port,
                              .port_last = options_.endpoint.port});
  if (opened.ok()) return {};
  return Status::stop(format_text("node 0 cannot listen at {}: {}; is there another node 0?",
                                  options_.endpoint.text(), opened.message()));
}

Status FirstNode::listen_at_free_port(TimePoint now) {
  FARANDOLE_TRY_ASSIGN(const auto interface_addresses, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(auto addresses,
                       choose_addresses(interface_addresses, options_.listen_choice->interfaces));
  PortRange ports = options_.listen_choice->ports;
  if (options_.replaces) ports.first = ports.last = options_.addresses.front().port;
  const Status opened =
      open({.addresses = std::move(addresses), .port_first = ports.first, .port_last = ports.last});
  const bool may_try_again = options_.replaces && now < listen_retry_deadline_;
  if (!opened.ok()) return may_try_again ? Status() : opened;
  expectation_deadline_ = now + kReplacementTimeout;
  options_.endpoint.port = listener_->addresses().front().port;
  return {};
}

Status FirstNode::open(ListenOptions options) {
  options.acceptance = {.self = {Role::kLauncher, 0}};
  options.tcp = tcp_options(options_.is_elastic);
  FARANDOLE_TRY_ASSIGN(listener_, TcpListener::open(context_, options));
  return events_.add(listener_->descriptor(), kListenerId, false);
}

std::vector<SocketAddress> FirstNode::listening_addresses() const {
  return listener_ != nullptr ? listener_->addresses() : std::vector<SocketAddress>();
}

Endpoint FirstNode::endpoint() const {
  if (!options_.listen_choice) return options_.endpoint;
  const SocketAddress& address = listener_->addresses().front();
  return {address.ip_text(), address.port};
}

Result<NodeEvents> FirstNode::advance(TimePoint now) {
  NodeEvents news;
  FARANDOLE_TRY(listen(now, news));
  if (options_.replaces) begin_if_complete();  // must happen before any node joins again
  FARANDOLE_TRY(accept(now, news));
  FARANDOLE_TRY(serve_launchers(now, news));
  begin_if_complete();
  report_end_of_expectation(now, news);
  if (!start_) {
    if (now >= start_deadline_) return give_up(Status::stop(timeout_text()));
    if (listener_ != nullptr && now >= first_notice_time_) show_missing_nodes(news);
  }
  return news;
}

void FirstNode::report_end_of_expectation(TimePoint now, NodeEvents& news) {
  if (!options_.replaces || !start_ || (roll_call_.expects_nodes() && now < expectation_deadline_))
    return;
  // The driver must know which nodes have not come back. Otherwise, the next launcher of node 0
  // would expect them, too.
  for (const int node : roll_call_.stop_expecting())
    news.changes.push_back(
        {.node = node,
         .why = format_text("{} has not found the new node 0", roll_call_.name(node))});
  news.no_more_nodes_expected = !std::exchange(has_reported_no_expected_nodes_, true);
}

Status FirstNode::accept(TimePoint now, NodeEvents& news) {
  while (listener_ != nullptr) {
    FARANDOLE_TRY_ASSIGN(auto connection, listener_->try_accept(now));
    if (connection == nullptr) break;
    const Role role = connection->peer().party.role;
    if (role == Role::kWorker) {
      news.workers.push_back(std::move(connection));
    } else if (role == Role::kAgent) {
      const std::uint64_t id = next_launcher_id_++;
      FARANDOLE_TRY(events_.add(connection->descriptor(), id, false));
      launchers_.emplace(id, ConnectedLauncher{.channel = NodeChannel(std::move(connection)),
                                               .leave_deadline = now + kHelloTimeout,
                                               .silence = Silence(now)});
    }
  }
  return {};
}

Status FirstNode::serve_launchers(TimePoint now, NodeEvents& news) {
  for (auto next = launchers_.begin(); next != launchers_.end();) {
    const auto current = next++;
    ConnectedLauncher& launcher = current->second;
    const std::vector<NodeMessage> messages = launcher.channel.advance();
    for (const NodeMessage& message : messages) FARANDOLE_TRY(handle(launcher, message, now, news));
    check_silence(launcher, !messages.empty(), now);
    if (launcher.hello && launcher.node < 0 && !launcher.is_rejected)
      FARANDOLE_TRY(handle_hello(launcher, now, news));
    FARANDOLE_TRY(remove_if_gone(current, now, news));
  }
  return {};
}

Status FirstNode::handle(ConnectedLauncher& launcher, const NodeMessage& message, TimePoint now,
                         NodeEvents& news) {
  if (launcher.is_rejected) return {};
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && launcher.node < 0) {
    launcher.hello = *hello;
    return handle_hello(launcher, now, news);
  }
  if (launcher.node < 0 || !start_) return {};
  if (const auto* exit = std::get_if<WorkerExit>(&message)) news.exits.push_back(*exit);
  if (std::holds_alternative<WorkerReport>(message) ||
      std::holds_alternative<StackReport>(message) || std::holds_alternative<WorkerStop>(message))
    news.messages.push_back(message);
  if (std::holds_alternative<NodeLeaves>(message))
    news.messages.push_back(NodeLeaves{static_cast<std::uint32_t>(launcher.node)});
  if (const auto* state = std::get_if<NodeState>(&message)) {
    NodeState node_state = *state;
    node_state.node = static_cast<std::uint32_t>(launcher.node);
    news.messages.push_back(std::move(node_state));
  }
  if (const auto* piece = std::get_if<TimelinePiece>(&message);
      piece != nullptr && piece->node == static_cast<std::uint32_t>(launcher.node))
    news.messages.push_back(message);
  if (const auto* end = std::get_if<TimelineEnd>(&message);
      end != nullptr && end->node == static_cast<std::uint32_t>(launcher.node))
    news.messages.push_back(message);
  if (const auto* failed_node = std::get_if<FailedNode>(&message))
    report_failure(launcher.node, with_node_name(launcher.node, failed_node->failure), &news);
  if (const auto* ended = std::get_if<NodeEnded>(&message)) handle_end(launcher.node, *ended, news);
  return {};
}

Status FirstNode::handle_hello(ConnectedLauncher& launcher, TimePoint now, NodeEvents& news) {
  const RollCall::Verdict verdict =
      roll_call_.add_launcher(*launcher.hello, launcher.channel.peer().addresses);
  // The node may have lost its earlier connection, and node 0 may not have noticed this loss yet.
  // So wait for some time before the launcher is rejected.
  if (verdict.may_change && start_ && now < launcher.leave_deadline) return {};
  if (verdict.rejection.empty()) {
    launcher.node = static_cast<int>(launcher.hello->node);
    if (start_) add_to_running_job(launcher, news);
    return {};
  }
  reject(launcher, verdict.rejection, now);
  if (verdict.ends_job) {
    return give_up(Status::fix_call(verdict.rejection));
  }
  news.notices.push_back("a launcher was rejected: " + verdict.rejection);
  return {};
}

// After a launcher has reported that its workers have ended, it is not watched, because it only
// waits for the other nodes. Before this report, the launcher may wait for processes that its
// workers have left behind. This wait takes less than Silence::kTimeMax.
void FirstNode::check_silence(ConnectedLauncher& launcher, bool got_message, TimePoint now) {
  if (!must_send_heartbeats(launcher)) return;
  launcher.silence.record_check(got_message, now);
  if (!launcher.silence.is_too_long() || !launcher.channel.status().ok()) return;
  launcher.channel.fail(Silence::error());
}

// Lets a new node, or a node that was lost before, take part in the running elastic job.
void FirstNode::add_to_running_job(ConnectedLauncher& launcher, NodeEvents& news) {
  start_->workers.clear();
  for (const int count : roll_call_.worker_counts())
    start_->workers.push_back(static_cast<unsigned>(count));
  Start start = *start_;
  start.has_begun = true;
  launcher.channel.send(start);
  failed_nodes_.resize(start.workers.size(), false);
  failed_nodes_.at(static_cast<std::size_t>(launcher.node)) = false;
  news.changes.push_back(
      {.node = launcher.node, .is_present = true, .has_begun = launcher.hello->has_begun});
}

void FirstNode::reject(ConnectedLauncher& launcher, const std::string& why, TimePoint now) {
  launcher.channel.send(NodeRejection{why});
  launcher.is_rejected = true;
  launcher.leave_deadline = now + kRejectionReadTimeout;
}

Status FirstNode::update_interest(std::uint64_t id, ConnectedLauncher& launcher) {
  if (launcher.channel.has_unsent() == launcher.waits_to_send) return {};
  launcher.waits_to_send = launcher.channel.has_unsent();
  return events_.change(launcher.channel.descriptor(), id, launcher.waits_to_send);
}

Status FirstNode::remove_if_gone(std::map<std::uint64_t, ConnectedLauncher>::iterator launcher,
                                 TimePoint now, NodeEvents& news) {
  const int node = launcher->second.node;
  NodeChannel& channel = launcher->second.channel;
  const bool is_late = node < 0 && launcher->second.leave_deadline <= now;
  if (channel.status().ok() && !is_late) return update_interest(launcher->first, launcher->second);
  if (node >= 0) {
    roll_call_.remove_launcher(node);
    if (start_ && !roll_call_.has_ended(node)) {
      const std::string why =
          format_text("{} is gone: {}", roll_call_.name(node), channel.status().message());
      if (options_.is_elastic)
        news.changes.push_back({.node = node, .why = why});
      else
        report_failure(node, loss_of(node, why), &news);
    }
  }
  events_.remove(channel.descriptor());
  launchers_.erase(launcher);
  return {};
}

// Reports only the first failure of a node. `news` is null for node 0's own failures.
void FirstNode::report_failure(int node, const NodeFailure& failure, NodeEvents* news) {
  if (failed_nodes_.at(static_cast<std::size_t>(node))) return;
  failed_nodes_.at(static_cast<std::size_t>(node)) = true;
  if (news != nullptr) news->failures.push_back({static_cast<std::uint32_t>(node), failure});
  send_to_nodes(FailedNode{static_cast<std::uint32_t>(node), failure}, node);
}

NodeFailure FirstNode::with_node_name(int node, NodeFailure failure) const {
  failure.why = format_text("{}: {}", roll_call_.name(node), escape_controls(failure.why));
  return failure;
}

NodeFailure FirstNode::loss_of(int node, const std::string& why) const {
  const NodeLayout layout{.node = node, .workers = roll_call_.worker_counts()};
  return {.why = why,
          .first_rank = static_cast<std::uint32_t>(layout.first_rank()),
          .ranks = static_cast<std::uint32_t>(layout.local_size())};
}

NodeFailure FirstNode::failure_of_end(int node, int exit_code) const {
  return {.why = format_text("{} has ended with exit code {}", roll_call_.name(node), exit_code)};
}

void FirstNode::handle_end(int node, const NodeEnded& ended, NodeEvents& news) {
  const int exit_code = roll_call_.is_needed(node) ? static_cast<int>(ended.exit_code & 0xFFU) : 0;
  roll_call_.record_end(node, exit_code);
  NodeEnd& node_end = news.ends.emplace_back(node, exit_code, ended.report);
  for (std::string& line : node_end.report) line = escape_controls(line);
  // In an elastic job, the end of one node is no failure for the other nodes: they finish their
  // parts of the job.
  if (exit_code != 0 && !options_.is_elastic)
    report_failure(node, failure_of_end(node, exit_code), &news);
}

void FirstNode::begin_if_complete() {
  if (start_ || !roll_call_.is_complete() || listener_ == nullptr) return;
  start_.emplace();
  for (const int count : roll_call_.worker_counts())
    start_->workers.push_back(static_cast<unsigned>(count));
  set_master_port();
  start_->jax_port = options_.jax_port;
  start_->tensorflow_ports = roll_call_.tensorflow_ports();
  if (!start_->tensorflow_ports.empty()) start_->addresses = addresses_of_nodes();
  send_to_nodes(*start_);
}

// If node 0 has no workers, MASTER_PORT is a port of node 1, and the master address is the address
// from which node 1 has connected.
void FirstNode::set_master_port() {
  start_->master_port = options_.master_port;
  for (const auto& [id, launcher] : launchers_) {
    if (options_.workers > 0 || launcher.node != 1) continue;
    start_->master_port = launcher.hello->master_port;
    // There is no address if the connection has just ended. Then node 1 has left.
    const auto address = peer_address_of(launcher.channel.descriptor());
    if (address.ok()) start_->master_address = address->ip_text();
  }
}

// Returns the addresses at which the workers of the nodes can reach each other: the addresses from
// which the launchers have connected to node 0. Other nodes can also reach a node at its address,
// unless there is a network address translation (NAT) between them.
std::vector<std::string> FirstNode::addresses_of_nodes() const {
  std::vector<std::string> addresses(static_cast<std::size_t>(options_.nodes));
  for (const auto& [id, launcher] : launchers_) {
    if (launcher.node < 0) continue;
    // There is no address if the connection has just ended. Then the job ends, too.
    const auto address = peer_address_of(launcher.channel.descriptor());
    if (address.ok()) addresses.at(static_cast<std::size_t>(launcher.node)) = address->ip_text();
  }
  return addresses;
}

void FirstNode::show_missing_nodes(NodeEvents& news) {
  const std::vector<int> missing = roll_call_.missing_nodes();
  if (missing != shown_missing_nodes_) {
    shown_missing_nodes_ = missing;
    news.notices.push_back(waiting_text(missing, options_.nodes) + " at " +
                           options_.endpoint.text());
    send_to_nodes(MissingNodes{{missing.begin(), missing.end()}});
  }
  if (listener_->counts().rejected > 0 && !std::exchange(has_shown_rejection_, true))
    news.notices.push_back(last_rejection_text());
}

void FirstNode::send_to_nodes(const NodeMessage& message, int excluded_node) {
  for (auto& [id, launcher] : launchers_)
    if (launcher.node >= 0 && launcher.node != excluded_node) send(id, launcher, message);
}

void FirstNode::tell(const NodeMessage& message) {
  if (const auto* formed = std::get_if<GroupFormed>(&message))
    roll_call_.group_formed(formed->slots);
  send_to_nodes(message);
}

void FirstNode::tell_node(int node, const NodeMessage& message) {
  for (auto& [id, launcher] : launchers_)
    if (launcher.node == node) send(id, launcher, message);
}

void FirstNode::send(std::uint64_t id, ConnectedLauncher& launcher, const NodeMessage& message) {
  launcher.channel.send(message);
  // If this fails, the next advance() reports the error.
  (void)update_interest(id, launcher);
}

bool FirstNode::is_connected(int node) const {
  return std::ranges::any_of(launchers_,
                             [node](const auto& entry) { return entry.second.node == node; });
}

Status FirstNode::give_up(Status why) {
  send_to_nodes(NodeRejection{why.message()});
  return why;
}

std::string FirstNode::last_rejection_text() const {
  return listener_->last_rejection().message() +
         "; if it was a node of this job, its file with the secret is different";
}

std::string FirstNode::timeout_text() const {
  const std::vector<int> missing = roll_call_.missing_nodes();
  std::string text =
      format_text("{} of {} {} not come to {} within {} (--start-timeout)", node_list_text(missing),
                  options_.nodes, missing.size() == 1 ? "has" : "have", options_.endpoint.text(),
                  seconds_text(options_.start_timeout));
  if (listener_ != nullptr && listener_->counts().rejected > 0)
    text += format_text("; connections were rejected ({}), the last one because: {}",
                        listener_->counts().rejected, last_rejection_text());
  return text + (options_.listen_choice
                     ? "; look for a firewall between this host and that of the missing node"
                     : "; start the same command on every host, with another --node");
}

void FirstNode::report_exit(const WorkerExit& /*exit*/) {}  // the caller itself writes to the Store

void FirstNode::report_failing(const NodeFailure& failure) {
  report_failure(0, with_node_name(0, failure), nullptr);
}

void FirstNode::report_end(int exit_code, const std::vector<std::string>& /*report*/) {
  roll_call_.record_end(0, exit_code);
  if (exit_code != 0) report_failure(0, failure_of_end(0, exit_code), nullptr);
}

TimePoint FirstNode::deadline() const {
  TimePoint earliest = start_ ? TimePoint::max() : start_deadline_;
  if (listener_ == nullptr) return std::min(earliest, next_look_up_time_);
  if (options_.replaces && !has_reported_no_expected_nodes_)
    earliest = std::min(earliest, expectation_deadline_);
  if (!start_ && shown_missing_nodes_.empty()) earliest = std::min(earliest, first_notice_time_);
  for (const auto& [id, launcher] : launchers_)
    if (launcher.node < 0)
      earliest = std::min(earliest, launcher.leave_deadline);
    else if (must_send_heartbeats(launcher))
      earliest = std::min(earliest, launcher.silence.next_check());
  return std::min(earliest, listener_->next_deadline());
}

}  // namespace farandole
