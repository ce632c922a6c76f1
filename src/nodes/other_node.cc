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

constexpr auto kDialPause = std::chrono::milliseconds(500);
constexpr auto kDialAgainPause = std::chrono::milliseconds(50);  // while node 0 is away
constexpr auto kDialTime = std::chrono::seconds(15);  // for all addresses of the endpoint
// A process at the endpoint that turns us away has another secret, or is about to end: an earlier
// job may still use the port. After this time, we conclude that it has another secret.
constexpr auto kTurnedAwayTime = std::chrono::seconds(10);
// After the start timeout, node 0 says which nodes are missing. This launcher waits for that
// message for this time.
constexpr auto kLastWordTime = std::chrono::seconds(5);

// Returns the text of the endpoint, with a remark if the endpoint means this host. Unless node 0 is
// on this host, too, such an endpoint is a mistake. If a driver has told the addresses of node 0,
// returns the name of its host and these.
std::string place_text(const NodeOptions& options) {
  const Endpoint& endpoint = options.endpoint;
  if (!options.addresses.empty()) {
    std::string addresses;
    for (const SocketAddress& known : options.addresses)
      addresses.append(addresses.empty() ? "" : ", ").append(known.text());
    return format_text("{} ({})", endpoint.host, addresses);
  }
  const auto address = SocketAddress::parse_ip(endpoint.host);
  const bool is_this_host =
      endpoint.host == "localhost" || (address.ok() && address->is_loopback());
  return endpoint.text() + (is_this_host ? " (this host)" : "");
}

// Whether a start has either no ports for TensorFlow, or those of all ranks.
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
      tell_error_from_(now + kTurnedAwayTime) {}

Result<std::unique_ptr<OtherNode>> OtherNode::create(const TlsContext& context,
                                                     const NodeOptions& options, TimePoint now) {
  FARANDOLE_TRY_ASSIGN(EventSet events, EventSet::make());
  return std::unique_ptr<OtherNode>(new OtherNode(context, options, std::move(events), now));
}

Result<NodeNews> OtherNode::advance(TimePoint now) {
  NodeNews news;
  if (channel_ == nullptr && returns_until_) {
    // While node 0 is away, no error is final.
    (void)connect(now, news);
  } else if (channel_ == nullptr && !start_) {
    FARANDOLE_TRY(connect(now, news));
  }
  if (channel_ != nullptr) FARANDOLE_TRY(receive(now, news));
  if (returns_until_ && now >= *returns_until_) give_up_node_0(news);
  const TimePoint deadline = start_deadline_ + (channel_ == nullptr ? Duration() : kLastWordTime);
  if (!start_ && now >= deadline) return timeout_error();
  return news;
}

Status OtherNode::connect(TimePoint now, NodeNews& news) {
  if (dialer_ == nullptr) FARANDOLE_TRY(begin_dialing(now, news));
  if (dialer_ == nullptr) return {};
  auto connection = dialer_->try_connect(now);
  if (!connection.ok()) {
    const bool turned_away = dialer_->was_turned_away();
    events_.remove(dialer_->descriptor());
    dialer_.reset();
    dial_again(connection.status(), turned_away, now, news);
    if (turned_away_since_ && now >= *turned_away_since_ + kTurnedAwayTime)
      return Status::fix_call(format_text(
          "node 0 at {} does not let us in: the file with the secret must be the same on all "
          "hosts, and the endpoint that of this job ({})",
          options_.endpoint.text(), last_error_.message()));
    return {};
  }
  if (*connection == nullptr) return {};
  events_.remove(dialer_->descriptor());
  dialer_.reset();
  turned_away_since_.reset();
  channel_ = std::make_unique<NodeChannel>(*std::move(connection));
  heartbeat_ = Heartbeat(now);
  if (!options_.addresses.empty()) {
    FARANDOLE_TRY_ASSIGN(const auto reached, peer_address_of(channel_->descriptor()));
    endpoint_ = {reached.ip_text(), reached.port};
  }
  waits_to_send_ = false;
  FARANDOLE_TRY(events_.add(channel_->descriptor(), next_id_++, false));
  Hello hello = hello_of(options_);
  hello.has_begun = returns_until_.has_value();
  channel_->send(hello);
  return {};
}

// Looks the name up each time, because it may not be known yet, or change.
Status OtherNode::begin_dialing(TimePoint now, NodeNews& news) {
  if (now < next_dial_) return {};
  auto found = options_.addresses.empty()
                   ? look_up_host(options_.endpoint.host, options_.endpoint.port)
                   : Result<std::vector<SocketAddress>>(options_.addresses);
  if (!found.ok()) {
    dial_again(Status::retry(format_text("the name {} is not known: {}", options_.endpoint.host,
                                         found.status().message())),
               false, now, news);
    return {};
  }
  const Link link{.dialer = {Role::kAgent, static_cast<std::uint32_t>(options_.node)},
                  .listener = {Role::kLauncher, 0}};
  const DialOptions dialing{.addresses = *std::move(found),
                            .link = link,
                            .rounds = 1,
                            .tcp = tcp_options(options_.is_elastic)};
  FARANDOLE_TRY_ASSIGN(
      dialer_, Dialer::start(context_, dialing, now,
                             std::min(now + kDialTime, returns_until_.value_or(start_deadline_))));
  return events_.add(dialer_->descriptor(), next_id_++, false);
}

void OtherNode::dial_again(const Status& why, bool turned_away, TimePoint now, NodeNews& news) {
  last_error_ = why;
  next_dial_ = now + (returns_until_ ? kDialAgainPause : kDialPause);
  if (returns_until_) return;
  if (!turned_away) turned_away_since_.reset();
  if (turned_away && !turned_away_since_) turned_away_since_ = now;
  const std::string waiting = waiting_text({0}, options_.nodes) + " at " + place_text(options_);
  if (!std::exchange(told_waiting_, true)) news.notices.push_back(waiting);
  // That nobody listens yet needs no explanation.
  if (!turned_away && now < tell_error_from_) return;
  if (!std::exchange(told_error_, true))
    news.notices.push_back(format_text("{}: {}", waiting, why.message()));
}

Status OtherNode::receive(TimePoint now, NodeNews& news) {
  for (const NodeMessage& message : channel_->advance()) FARANDOLE_TRY(handle(message, news));
  if (has_heartbeat() && heartbeat_.is_due(now)) tell(Alive());
  if (!channel_->status().ok()) {
    handle_loss(now, news);
    return {};
  }
  return update_interest();
}

Status OtherNode::handle(const NodeMessage& message, NodeNews& news) {
  if (const auto* rejection = std::get_if<NodeRejection>(&message); rejection != nullptr && !start_)
    return Status::fix_call(escape_controls(rejection->why));
  if (std::holds_alternative<NodeRejection>(message) && returns_until_) give_up_node_0(news);
  if (std::holds_alternative<Start>(message) && returns_until_) {
    returns_until_.reset();
    news.node_0_is_back = true;
    if (ended_) tell(*ended_);
  }
  if (const auto* waiting = std::get_if<Waiting>(&message);
      waiting != nullptr && waiting->missing != missing_) {
    missing_ = waiting->missing;
    if (!missing_.empty() && missing_.back() < kNodesMax)
      news.notices.push_back(waiting_text({missing_.begin(), missing_.end()}, options_.nodes));
  }
  if (const auto* start = std::get_if<Start>(&message); start != nullptr && !start_) {
    const auto node = static_cast<std::size_t>(options_.node);
    // The nodes of an elastic job that runs are those that have joined, and this one.
    const bool fits = start->has_begun
                          ? node < start->workers.size()
                          : start->workers.size() == static_cast<std::size_t>(options_.nodes);
    if (!fits || start->workers.at(node) != static_cast<std::uint32_t>(options_.workers) ||
        !has_all_ports(*start))
      return Status::stop("node 0 has started another job than this one");
    start_ = *start;
  }
  if (const auto* failing = std::get_if<Failing>(&message)) {
    news.failures.push_back(*failing);
    news.failures.back().failure.why = escape_controls(failing->failure.why);
  }
  if (start_ && is_for_launcher(message)) news.messages.push_back(message);
  if (const auto* over = std::get_if<Over>(&message)) {
    job_exit_code_ = static_cast<int>(over->exit_code & 0xFFU);
    outcome_ = job_exit_code_ == 0;
  }
  return {};
}

// Before the start, node 0 may be started again. After the end, it may leave.
void OtherNode::handle_loss(TimePoint now, NodeNews& news) {
  const Status why = channel_->status();
  events_.remove(channel_->descriptor());
  channel_.reset();
  if (!start_) {
    dial_again(why, false, now, news);
  } else if (!outcome_) {
    why_lost_ = why.message();
    // Only a driver puts another launcher in place of node 0's.
    const bool may_return = options_.is_elastic && !options_.addresses.empty();
    if (!returns_until_) returns_until_ = may_return ? now + kNode0ReturnTime : now;
    next_dial_ = now;
    if (!may_return) give_up_node_0(news);
  }
}

void OtherNode::give_up_node_0(NodeNews& news) {
  returns_until_.reset();
  if (dialer_ != nullptr) events_.remove(dialer_->descriptor());
  dialer_.reset();
  outcome_ = false;
  lost_node_0_ = true;
  news.failures.push_back(
      {0, {.why = format_text("the launcher of node 0 is gone: {}", why_lost_)}});
}

Status OtherNode::update_interest() {
  if (channel_->has_unsent() == waits_to_send_) return {};
  waits_to_send_ = channel_->has_unsent();
  return events_.change(channel_->descriptor(), next_id_++, waits_to_send_);
}

void OtherNode::tell(const NodeMessage& message) {
  if (channel_ == nullptr) return;
  channel_->send(message);
  // An error shows at the next advance().
  (void)update_interest();
}

void OtherNode::report_failing(const NodeFailure& failure) {
  tell(Failing{static_cast<std::uint32_t>(options_.node), failure});
}

void OtherNode::report_end(int exit_code, const std::vector<std::string>& report) {
  ended_ = make_ended(exit_code, report);
  tell(*ended_);
}

Status OtherNode::timeout_error() const {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(options_.start_timeout).count();
  if (!missing_.empty())
    return Status::stop(format_text("{} of {} did not come within {} s (--start-timeout)",
                                    name_nodes({missing_.begin(), missing_.end()}), options_.nodes,
                                    seconds));
  return Status::stop(format_text(
      "node 0 of {} was not reached at {} within {} s (--start-timeout); {} ({})", options_.nodes,
      place_text(options_), seconds,
      options_.addresses.empty()
          ? "start the same command with --node 0 on the host of the endpoint"
          : "look for a firewall between the hosts, or choose --network-interfaces and --ports",
      last_error_.message()));
}

TimePoint OtherNode::deadline() const {
  if (returns_until_ && channel_ == nullptr)
    return std::min(*returns_until_, dialer_ != nullptr ? dialer_->next_deadline() : next_dial_);
  if (start_)
    return std::min(has_heartbeat() ? heartbeat_.next() : TimePoint::max(),
                    returns_until_.value_or(TimePoint::max()));
  if (channel_ != nullptr) return start_deadline_ + kLastWordTime;
  const TimePoint next = dialer_ != nullptr ? dialer_->next_deadline() : next_dial_;
  return std::min(next, start_deadline_);
}

}  // namespace farandole
