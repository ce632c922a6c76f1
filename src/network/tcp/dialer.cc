#include "network/tcp/dialer.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// Returns the addresses in an order that alternates between IPv6 and IPv4. So if one of the two
// does not work, the dialer tries the other one after only one pause.
std::vector<SocketAddress> alternate_families(const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> ordered_addresses;
  std::deque<SocketAddress> remaining_addresses(addresses.begin(), addresses.end());
  while (!remaining_addresses.empty()) {
    auto next_address = remaining_addresses.begin();
    if (!ordered_addresses.empty()) {
      const bool v6_next = !ordered_addresses.back().is_v6;
      next_address = std::ranges::find(remaining_addresses, v6_next, &SocketAddress::is_v6);
      if (next_address == remaining_addresses.end()) next_address = remaining_addresses.begin();
    }
    ordered_addresses.push_back(*next_address);
    remaining_addresses.erase(next_address);
  }
  return ordered_addresses;
}

}  // namespace

Dialer::Dialer(const TlsContext& context, const DialOptions& options, EventSet events,
               TimePoint deadline)
    : context_(context), options_(options), events_(std::move(events)), deadline_(deadline) {
  for (const SocketAddress& address : alternate_families(options.addresses))
    targets_.push_back({address});
}

Result<std::unique_ptr<Dialer>> Dialer::start(const TlsContext& context, const DialOptions& options,
                                              TimePoint now, TimePoint deadline) {
  if (options.addresses.empty())
    return Status::fix_call(
        format_text("{} offers no address to connect to", name_of(options.link.listener)));
  FARANDOLE_TRY_ASSIGN(EventSet events, EventSet::make());
  std::unique_ptr<Dialer> dialer(new Dialer(context, options, std::move(events), deadline));
  dialer->begin_round(now);
  return dialer;
}

void Dialer::begin_round(TimePoint now) {
  for (std::size_t i = 0; i < targets_.size(); ++i) untried_targets_.push_back(i);
  // The first round begins without a pause.
  next_attempt_time_ = rounds_begun_ == 0 ? now : now + options_.pause * (1 << (rounds_begun_ - 1));
  ++rounds_begun_;
}

Result<std::unique_ptr<Connection>> Dialer::try_connect(TimePoint now) {
  FARANDOLE_TRY(final_error_);
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    FARANDOLE_TRY_ASSIGN(auto connection, advance(current, now));
    if (connection != nullptr) {
      attempts_.erase(current);
      while (!attempts_.empty()) drop(attempts_.begin());
      final_error_ = Status::fix_call("this dialer has handed out its connection");
      return connection;
    }
    if (is_confirming_) break;  // this attempt is the only one that remains
  }
  if (now >= deadline_) return final_error_ = connect_error("there was no connection in time");
  while (!is_confirming_ && !untried_targets_.empty() && next_attempt_time_ <= now)
    FARANDOLE_TRY(begin_next_attempt(now));
  if (attempts_.empty() && untried_targets_.empty()) {
    if (rounds_begun_ >= options_.rounds) return final_error_ = connect_error("no address works");
    begin_round(now);
  }
  return std::unique_ptr<Connection>();
}

Status Dialer::begin_next_attempt(TimePoint now) {
  const std::size_t index = untried_targets_.front();
  untried_targets_.pop_front();
  Target& target = targets_[index];
  ++target.tries;
  auto wire = TcpConnection::dial(target.address, options_.local_address, options_.tcp);
  if (!wire.ok()) {
    target.last_error = wire.status();
    return {};  // try the next address without a pause
  }
  auto session = TlsSession::dial(context_, *std::move(wire), options_.link);
  FARANDOLE_TRY(events_.add(session->descriptor(), index, true));
  attempts_.push_back({.target_index = index,
                       .session = std::move(session),
                       .deadline = now + options_.attempt_time_max});
  next_attempt_time_ = now + options_.pause;
  return {};
}

// Returns null if the connection is not established yet.
Result<std::unique_ptr<Connection>> Dialer::advance(Attempts::iterator attempt, TimePoint now) {
  TlsSession& session = *attempt->session;
  const auto progress = session.try_handshake();
  if (!progress.ok() && session.reached_peer()) was_rejected_ = true;
  if (progress.ok() && *progress == TlsSession::Progress::kDone) {
    events_.remove(session.descriptor());
    return std::unique_ptr<Connection>(std::move(attempt->session));
  }
  // Do this before the deadline is checked: the peer may accept this connection.
  if (progress.ok() && *progress == TlsSession::Progress::kConfirming && !is_confirming_)
    drop_all_except(attempt);
  if (!progress.ok() || attempt->deadline <= now) {
    give_up(
        attempt,
        progress.ok()
            ? Status::rebuild_group(format_text(
                  "no answer within {} ms",
                  std::chrono::duration_cast<std::chrono::milliseconds>(options_.attempt_time_max)
                      .count()))
            : progress.status(),
        now);
    return std::unique_ptr<Connection>();
  }
  if (session.has_unsent() != attempt->waits_to_send) {
    attempt->waits_to_send = session.has_unsent();
    FARANDOLE_TRY(
        events_.change(session.descriptor(), attempt->target_index, attempt->waits_to_send));
  }
  return std::unique_ptr<Connection>();
}

void Dialer::drop(Attempts::iterator attempt) {
  events_.remove(attempt->session->descriptor());
  attempts_.erase(attempt);
}

void Dialer::give_up(Attempts::iterator attempt, const Status& reason, TimePoint now) {
  targets_[attempt->target_index].last_error = reason;
  drop(attempt);
  is_confirming_ = false;
  if (!untried_targets_.empty()) next_attempt_time_ = std::min(next_attempt_time_, now);
}

void Dialer::drop_all_except(Attempts::iterator chosen) {
  is_confirming_ = true;
  // The peer may already have accepted this connection, and it accepts only one connection. So this
  // attempt has no time limit except the deadline of the dialer.
  chosen->deadline = TimePoint::max();
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    if (current == chosen) continue;
    untried_targets_.push_front(current->target_index);
    drop(current);
  }
}

Status Dialer::connect_error(const char* reason) const {
  std::string text =
      format_text("cannot connect to {}: {}", name_of(options_.link.listener), reason);
  for (const Target& target : targets_) {
    const auto in_progress = std::ranges::any_of(attempts_, [&](const Attempt& attempt) {
      return &targets_[attempt.target_index] == &target;
    });
    const std::string last_error_text = in_progress && is_confirming_
                                            ? "it has not confirmed the connection yet"
                                        : !target.last_error.ok() ? target.last_error.message()
                                        : in_progress             ? "no answer yet"
                                                                  : "not tried yet";
    text += format_text("; {} (tried {} times): {}", target.address.text(), target.tries,
                        last_error_text);
  }
  return Status::rebuild_group(text + "; check that the peer runs and that no firewall blocks it");
}

TimePoint Dialer::next_deadline() const {
  TimePoint earliest = deadline_;
  for (const Attempt& attempt : attempts_) earliest = std::min(earliest, attempt.deadline);
  if (!is_confirming_ && !untried_targets_.empty())
    earliest = std::min(earliest, next_attempt_time_);
  return earliest;
}

}  // namespace farandole
