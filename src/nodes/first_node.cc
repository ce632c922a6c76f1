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
// A driver starts all nodes itself, so a notice that some are missing is useful only after a while.
constexpr auto kQuietTimeUnderDriver = std::chrono::seconds(10);
constexpr auto kLookUpPause = std::chrono::seconds(1);
// The lost launcher may still use its port for a moment.
constexpr auto kListenAgainPause = std::chrono::milliseconds(50);
constexpr auto kListenAgainTime = std::chrono::seconds(2);
constexpr auto kHelloTime = std::chrono::seconds(10);    // for a launcher to say who it is
constexpr auto kRejectedTime = std::chrono::seconds(5);  // for a rejected one to read why

std::string seconds_text(Duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

}  // namespace

std::optional<Failing> first_failed(const std::vector<NodeEnd>& ends) {
  for (const NodeEnd& end : ends)
    if (end.exit_code != 0)
      return Failing{.node = static_cast<std::uint32_t>(end.node),
                     .failure = {.why = format_text("node {} has ended with exit code {}", end.node,
                                                    end.exit_code)}};
  return std::nullopt;
}

FirstNode::FirstNode(const TlsContext& context, const NodeOptions& options, EventSet events,
                     TimePoint now)
    : context_(context),
      options_(options),
      events_(std::move(events)),
      start_deadline_(now + options.start_timeout),
      next_look_up_(now),
      tells_from_(now + (options.listens_at ? kQuietTimeUnderDriver : Duration())),
      roll_(hello_of(options), options.replaces),
      failing_(static_cast<std::size_t>(options.nodes), false),
      listens_again_until_(now + kListenAgainTime),
      expects_until_(now + kReplacementTime) {}

Result<std::unique_ptr<FirstNode>> FirstNode::create(const TlsContext& context,
                                                     const NodeOptions& options, TimePoint now) {
  FARANDOLE_TRY_ASSIGN(EventSet events, EventSet::make());
  return std::unique_ptr<FirstNode>(new FirstNode(context, options, std::move(events), now));
}

Status FirstNode::listen(TimePoint now, NodeNews& news) {
  if (listener_ != nullptr || now < next_look_up_) return {};
  next_look_up_ = now + (options_.replaces ? kListenAgainPause : kLookUpPause);
  if (options_.listens_at) return listen_at_free_port(now);
  return listen_at_endpoint(now, news);
}

// If the name of the endpoint is not known yet, a later call tries again.
Status FirstNode::listen_at_endpoint(TimePoint now, NodeNews& news) {
  auto found = look_up_host(options_.endpoint.host, options_.endpoint.port);
  if (!found.ok() && found.status().code() == StatusCode::kRetry && now < start_deadline_) {
    if (!std::exchange(told_unknown_name_, true))
      news.notices.push_back(
          format_text("node 0 cannot listen at {} yet: the name is not known: {}",
                      options_.endpoint.text(), found.status().message()));
    return {};
  }
  if (!found.ok())
    return Status::stop(format_text("node 0 cannot listen at {}: the name is not known: {}",
                                    options_.endpoint.text(), found.status().message()));
  FARANDOLE_TRY_ASSIGN(const auto of_host, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(auto addresses, own_addresses(options_.endpoint, *found, of_host, "node 0"));
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
  FARANDOLE_TRY_ASSIGN(const auto of_host, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(auto addresses, choose_addresses(of_host, options_.listens_at->interfaces));
  PortRange ports = options_.listens_at->ports;
  if (options_.replaces) ports.first = ports.last = options_.addresses.front().port;
  const Status opened =
      open({.addresses = std::move(addresses), .port_first = ports.first, .port_last = ports.last});
  const bool may_try_again = options_.replaces && now < listens_again_until_;
  if (!opened.ok()) return may_try_again ? Status() : opened;
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
  if (!options_.listens_at) return options_.endpoint;
  const SocketAddress& first = listener_->addresses().front();
  return {first.ip_text(), first.port};
}

Result<NodeNews> FirstNode::advance(TimePoint now) {
  NodeNews news;
  FARANDOLE_TRY(listen(now, news));
  if (options_.replaces) begin_if_complete();  // before the first node joins again
  FARANDOLE_TRY(accept(now, news));
  FARANDOLE_TRY(serve_guests(now, news));
  begin_if_complete();
  tell_who_is_expected(now, news);
  if (!start_) {
    if (now >= start_deadline_) return give_up(Status::stop(timeout_text()));
    if (listener_ != nullptr && now >= tells_from_) tell_who_is_missing(news);
  }
  return news;
}

void FirstNode::tell_who_is_expected(TimePoint now, NodeNews& news) {
  if (!options_.replaces || !start_ || (roll_.expects_somebody() && now < expects_until_)) return;
  // The driver must know these, because the next launcher of node 0 would expect them.
  for (const int node : roll_.expect_nobody())
    news.changes.push_back(
        {.node = node, .why = format_text("{} has not found the new node 0", roll_.name(node))});
  news.nobody_is_expected = !std::exchange(told_nobody_is_expected_, true);
}

Status FirstNode::accept(TimePoint now, NodeNews& news) {
  while (listener_ != nullptr) {
    FARANDOLE_TRY_ASSIGN(auto connection, listener_->try_accept(now));
    if (connection == nullptr) break;
    const Role role = connection->peer().party.role;
    if (role == Role::kWorker) {
      news.workers.push_back(std::move(connection));
    } else if (role == Role::kAgent) {
      const std::uint64_t id = next_guest_++;
      FARANDOLE_TRY(events_.add(connection->descriptor(), id, false));
      guests_.emplace(id, Guest{.channel = NodeChannel(std::move(connection)),
                                .leave_by = now + kHelloTime,
                                .silence = Silence(now)});
    }
  }
  return {};
}

Status FirstNode::serve_guests(TimePoint now, NodeNews& news) {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const auto current = guest++;
    Guest& one = current->second;
    const std::vector<NodeMessage> messages = one.channel.advance();
    for (const NodeMessage& message : messages) FARANDOLE_TRY(handle(one, message, now, news));
    check_silence(one, !messages.empty(), now);
    if (one.hello && one.node < 0 && !one.rejected) FARANDOLE_TRY(greet(one, now, news));
    FARANDOLE_TRY(remove_if_gone(current, now, news));
  }
  return {};
}

Status FirstNode::handle(Guest& guest, const NodeMessage& message, TimePoint now, NodeNews& news) {
  if (guest.rejected) return {};
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && guest.node < 0) {
    guest.hello = *hello;
    return greet(guest, now, news);
  }
  if (guest.node < 0 || !start_) return {};
  if (const auto* exit = std::get_if<WorkerExit>(&message)) news.exits.push_back(*exit);
  if (std::holds_alternative<WorkerReport>(message) ||
      std::holds_alternative<StackReport>(message) || std::holds_alternative<WorkerStop>(message))
    news.messages.push_back(message);
  if (std::holds_alternative<NodeLeaves>(message))
    news.messages.push_back(NodeLeaves{static_cast<std::uint32_t>(guest.node)});
  if (const auto* state = std::get_if<NodeState>(&message)) {
    NodeState of_node = *state;
    of_node.node = static_cast<std::uint32_t>(guest.node);
    news.messages.push_back(std::move(of_node));
  }
  if (const auto* piece = std::get_if<TimelinePiece>(&message);
      piece != nullptr && piece->node == static_cast<std::uint32_t>(guest.node))
    news.messages.push_back(message);
  if (const auto* end = std::get_if<TimelineEnd>(&message);
      end != nullptr && end->node == static_cast<std::uint32_t>(guest.node))
    news.messages.push_back(message);
  if (const auto* failing = std::get_if<Failing>(&message))
    fail(guest.node, named(guest.node, failing->failure), &news);
  if (const auto* ended = std::get_if<Ended>(&message)) end(guest.node, *ended, news);
  return {};
}

Status FirstNode::greet(Guest& guest, TimePoint now, NodeNews& news) {
  const RollCall::Verdict verdict = roll_.arrive(*guest.hello, guest.channel.peer().addresses);
  // The node may have lost its former connection before we notice it.
  if (verdict.may_change && start_ && now < guest.leave_by) return {};
  if (verdict.rejection.empty()) {
    guest.node = static_cast<int>(guest.hello->node);
    if (start_) welcome(guest, news);
    return {};
  }
  reject(guest, verdict.rejection, now);
  if (verdict.ends_job) {
    return give_up(Status::fix_call(verdict.rejection));
  }
  news.notices.push_back("a launcher was rejected: " + verdict.rejection);
  return {};
}

// A node that has ended is not watched: it waits for the others. Before that, its launcher may wait
// for processes that its workers have left behind, for less than Silence::kMax.
void FirstNode::check_silence(Guest& guest, bool has_heard, TimePoint now) {
  if (!may_not_be_silent(guest)) return;
  guest.silence.looked(has_heard, now);
  if (!guest.silence.is_too_long() || !guest.channel.status().ok()) return;
  guest.channel.fail(Silence::error());
}

// A new node, or one that was lost, takes part in the elastic job.
void FirstNode::welcome(Guest& guest, NodeNews& news) {
  start_->workers.clear();
  for (const int count : roll_.workers()) start_->workers.push_back(static_cast<unsigned>(count));
  Start start = *start_;
  start.has_begun = true;
  guest.channel.send(start);
  failing_.resize(start.workers.size(), false);
  failing_.at(static_cast<std::size_t>(guest.node)) = false;
  news.changes.push_back(
      {.node = guest.node, .is_here = true, .has_begun = guest.hello->has_begun});
}

void FirstNode::reject(Guest& guest, const std::string& why, TimePoint now) {
  guest.channel.send(NodeRejection{why});
  guest.rejected = true;
  guest.leave_by = now + kRejectedTime;
}

Status FirstNode::update_interest(std::uint64_t id, Guest& guest) {
  if (guest.channel.has_unsent() == guest.waits_to_send) return {};
  guest.waits_to_send = guest.channel.has_unsent();
  return events_.change(guest.channel.descriptor(), id, guest.waits_to_send);
}

Status FirstNode::remove_if_gone(std::map<std::uint64_t, Guest>::iterator guest, TimePoint now,
                                 NodeNews& news) {
  const int node = guest->second.node;
  NodeChannel& channel = guest->second.channel;
  const bool late = node < 0 && guest->second.leave_by <= now;
  if (channel.status().ok() && !late) return update_interest(guest->first, guest->second);
  if (node >= 0) {
    roll_.leave(node);
    if (start_ && !roll_.has_ended(node)) {
      const std::string why =
          format_text("{} is gone: {}", roll_.name(node), channel.status().message());
      if (options_.is_elastic)
        news.changes.push_back({.node = node, .why = why});
      else
        fail(node, {.why = why}, &news);
    }
  }
  events_.remove(channel.descriptor());
  guests_.erase(guest);
  return {};
}

// Only the first failure of a node is reported. `news` is null for node 0's own failures.
void FirstNode::fail(int node, const NodeFailure& failure, NodeNews* news) {
  if (failing_.at(static_cast<std::size_t>(node))) return;
  failing_.at(static_cast<std::size_t>(node)) = true;
  if (news != nullptr) news->failures.push_back({static_cast<std::uint32_t>(node), failure});
  send_to_nodes(Failing{static_cast<std::uint32_t>(node), failure}, node);
}

NodeFailure FirstNode::named(int node, NodeFailure failure) const {
  failure.why = format_text("{}: {}", roll_.name(node), escape_controls(failure.why));
  return failure;
}

NodeFailure FirstNode::failure_of_end(int node, int exit_code) const {
  return {.why = format_text("{} has ended with exit code {}", roll_.name(node), exit_code)};
}

void FirstNode::end(int node, const Ended& ended, NodeNews& news) {
  const int exit_code = roll_.is_needed(node) ? static_cast<int>(ended.exit_code & 0xFFU) : 0;
  roll_.end(node, exit_code);
  NodeEnd& known = news.ends.emplace_back(node, exit_code, ended.report);
  for (std::string& line : known.report) line = escape_controls(line);
  // The other nodes of an elastic job finish.
  if (exit_code != 0 && !options_.is_elastic) fail(node, failure_of_end(node, exit_code), &news);
}

void FirstNode::begin_if_complete() {
  if (start_ || !roll_.complete() || listener_ == nullptr) return;
  start_.emplace();
  for (const int count : roll_.workers()) start_->workers.push_back(static_cast<unsigned>(count));
  set_master_port();
  start_->jax_port = options_.jax_port;
  start_->tensorflow_ports = roll_.tensorflow_ports();
  if (!start_->tensorflow_ports.empty()) start_->addresses = addresses_of_nodes();
  send_to_nodes(*start_);
}

// If node 0 has no workers, MASTER_PORT is a port of node 1, and the address is the one from which
// node 1 has connected.
void FirstNode::set_master_port() {
  start_->master_port = options_.master_port;
  for (const auto& [id, guest] : guests_) {
    if (options_.workers > 0 || guest.node != 1) continue;
    start_->master_port = guest.hello->master_port;
    // There is no address if the connection has just ended. Then node 1 has left.
    const auto address = peer_address_of(guest.channel.descriptor());
    if (address.ok()) start_->master_address = address->ip_text();
  }
}

// The workers of all nodes connect to each other. The address from which a launcher has reached us
// is one that others can reach, too, unless an address translation is between them.
std::vector<std::string> FirstNode::addresses_of_nodes() const {
  std::vector<std::string> addresses(static_cast<std::size_t>(options_.nodes));
  for (const auto& [id, guest] : guests_) {
    if (guest.node < 0) continue;
    // There is no address if the connection has just ended. Then the job ends, too.
    const auto address = peer_address_of(guest.channel.descriptor());
    if (address.ok()) addresses.at(static_cast<std::size_t>(guest.node)) = address->ip_text();
  }
  return addresses;
}

void FirstNode::tell_who_is_missing(NodeNews& news) {
  const std::vector<int> missing = roll_.missing();
  if (missing != told_missing_) {
    told_missing_ = missing;
    news.notices.push_back(waiting_text(missing, options_.nodes) + " at " +
                           options_.endpoint.text());
    send_to_nodes(Waiting{{missing.begin(), missing.end()}});
  }
  if (listener_->counts().rejected > 0 && !std::exchange(told_rejection_, true))
    news.notices.push_back(last_rejection_text());
}

void FirstNode::send_to_nodes(const NodeMessage& message, int except) {
  for (auto& [id, guest] : guests_)
    if (guest.node >= 0 && guest.node != except) send(id, guest, message);
}

void FirstNode::tell(const NodeMessage& message) {
  if (const auto* formed = std::get_if<GroupFormed>(&message)) roll_.group_formed(formed->slots);
  send_to_nodes(message);
}

void FirstNode::tell_node(int node, const NodeMessage& message) {
  for (auto& [id, guest] : guests_)
    if (guest.node == node) send(id, guest, message);
}

void FirstNode::send(std::uint64_t id, Guest& guest, const NodeMessage& message) {
  guest.channel.send(message);
  // An error shows at the next advance().
  (void)update_interest(id, guest);
}

bool FirstNode::is_connected(int node) const {
  return std::ranges::any_of(guests_,
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
  const std::vector<int> missing = roll_.missing();
  std::string text =
      format_text("{} of {} {} not come to {} within {} (--start-timeout)", name_nodes(missing),
                  options_.nodes, missing.size() == 1 ? "has" : "have", options_.endpoint.text(),
                  seconds_text(options_.start_timeout));
  if (listener_ != nullptr && listener_->counts().rejected > 0)
    text += format_text("; connections were rejected ({}), the last one because: {}",
                        listener_->counts().rejected, last_rejection_text());
  return text + (options_.listens_at
                     ? "; look for a firewall between this host and that of the missing node"
                     : "; start the same command on every host, with another --node");
}

void FirstNode::report_exit(const WorkerExit& /*exit*/) {}  // the caller has the Store itself

void FirstNode::report_failing(const NodeFailure& failure) { fail(0, named(0, failure), nullptr); }

void FirstNode::report_end(int exit_code, const std::vector<std::string>& /*report*/) {
  roll_.end(0, exit_code);
  if (exit_code != 0) fail(0, failure_of_end(0, exit_code), nullptr);
}

TimePoint FirstNode::deadline() const {
  TimePoint next = start_ ? TimePoint::max() : start_deadline_;
  if (options_.replaces && !told_nobody_is_expected_) next = std::min(next, expects_until_);
  if (listener_ == nullptr) return std::min(next, next_look_up_);
  if (!start_ && told_missing_.empty()) next = std::min(next, tells_from_);
  for (const auto& [id, guest] : guests_)
    if (guest.node < 0)
      next = std::min(next, guest.leave_by);
    else if (may_not_be_silent(guest))
      next = std::min(next, guest.silence.next_look());
  return std::min(next, listener_->next_deadline());
}

}  // namespace farandole
