#include "network/tcp/dialer.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// Alternates between IPv6 and IPv4. So if one family does not work, the dialer loses only one
// pause.
std::vector<SocketAddress> alternate_families(const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> ordered;
  std::deque<SocketAddress> remaining(addresses.begin(), addresses.end());
  while (!remaining.empty()) {
    auto next = remaining.begin();
    if (!ordered.empty()) {
      const bool v6_next = !ordered.back().is_v6;
      next = std::ranges::find(remaining, v6_next, &SocketAddress::is_v6);
      if (next == remaining.end()) next = remaining.begin();
    }
    ordered.push_back(*next);
    remaining.erase(next);
  }
  return ordered;
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
  next_start_ = rounds_begun_ == 0 ? now : now + options_.pause * (1 << (rounds_begun_ - 1));
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
    if (confirming_) break;  // the only remaining attempt
  }
  if (now >= deadline_) return final_error_ = failure("there was no connection in time");
  while (!confirming_ && !untried_targets_.empty() && next_start_ <= now)
    FARANDOLE_TRY(begin_next(now));
  if (attempts_.empty() && untried_targets_.empty()) {
    if (rounds_begun_ >= options_.rounds) return final_error_ = failure("no address works");
    begin_round(now);
  }
  return std::unique_ptr<Connection>();
}

Status Dialer::begin_next(TimePoint now) {
  const std::size_t index = untried_targets_.front();
  untried_targets_.pop_front();
  Target& target = targets_[index];
  ++target.tries;
  auto wire = TcpConnection::dial(target.address, options_.from, options_.tcp);
  if (!wire.ok()) {
    target.last_error = wire.status();
    return {};  // try the next address without a pause
  }
  auto session = TlsSession::dial(context_, *std::move(wire), options_.link);
  FARANDOLE_TRY(events_.add(session->descriptor(), index, true));
  attempts_.push_back({.target = index,
                       .session = std::move(session),
                       .deadline = now + options_.attempt_time_max});
  next_start_ = now + options_.pause;
  return {};
}

// Returns null if the connection is not established yet.
Result<std::unique_ptr<Connection>> Dialer::advance(Attempts::iterator attempt, TimePoint now) {
  TlsSession& session = *attempt->session;
  const auto progress = session.try_handshake();
  if (!progress.ok() && session.peer_closed_handshake()) was_turned_away_ = true;
  if (progress.ok() && *progress == TlsSession::Progress::kDone) {
    events_.remove(session.descriptor());
    return std::unique_ptr<Connection>(std::move(attempt->session));
  }
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
  if (*progress == TlsSession::Progress::kConfirming && !confirming_) drop_all_except(attempt);
  if (session.has_unsent() != attempt->waits_to_send) {
    attempt->waits_to_send = session.has_unsent();
    FARANDOLE_TRY(events_.change(session.descriptor(), attempt->target, attempt->waits_to_send));
  }
  return std::unique_ptr<Connection>();
}

void Dialer::drop(Attempts::iterator attempt) {
  events_.remove(attempt->session->descriptor());
  attempts_.erase(attempt);
}

void Dialer::give_up(Attempts::iterator attempt, const Status& reason, TimePoint now) {
  targets_[attempt->target].last_error = reason;
  drop(attempt);
  confirming_ = false;
  if (!untried_targets_.empty()) next_start_ = std::min(next_start_, now);
}

void Dialer::drop_all_except(Attempts::iterator chosen) {
  confirming_ = true;
  // The peer may already have accepted this connection, and it accepts only one connection. So this
  // attempt has no time limit except the deadline of the dialer.
  chosen->deadline = TimePoint::max();
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    if (current == chosen) continue;
    untried_targets_.push_front(current->target);
    drop(current);
  }
}

Status Dialer::failure(const char* reason) const {
  std::string text =
      format_text("cannot connect to {}: {}", name_of(options_.link.listener), reason);
  for (const Target& target : targets_) {
    const auto in_progress = std::ranges::any_of(
        attempts_, [&](const Attempt& attempt) { return &targets_[attempt.target] == &target; });
    const std::string last_error_text = in_progress && confirming_
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
  TimePoint next = deadline_;
  for (const Attempt& attempt : attempts_) next = std::min(next, attempt.deadline);
  if (!confirming_ && !untried_targets_.empty()) next = std::min(next, next_start_);
  return next;
}

}  // namespace farandole
