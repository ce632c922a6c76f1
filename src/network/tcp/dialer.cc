#include "network/tcp/dialer.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// Alternates between IPv6 and IPv4, so that a family that does not work costs only one pause.
std::vector<SocketAddress> alternate_families(const std::vector<SocketAddress>& addresses) {
  std::vector<SocketAddress> ordered;
  std::deque<SocketAddress> rest(addresses.begin(), addresses.end());
  while (!rest.empty()) {
    auto next = rest.begin();
    if (!ordered.empty()) {
      const bool v6_next = !ordered.back().is_v6;
      next = std::ranges::find(rest, v6_next, &SocketAddress::is_v6);
      if (next == rest.end()) next = rest.begin();
    }
    ordered.push_back(*next);
    rest.erase(next);
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
  std::unique_ptr<Dialer> made(new Dialer(context, options, std::move(events), deadline));
  made->begin_round(now);
  return made;
}

void Dialer::begin_round(TimePoint now) {
  for (std::size_t i = 0; i < targets_.size(); ++i) waiting_.push_back(i);
  // The first round begins at once.
  next_start_ = rounds_begun_ == 0 ? now : now + options_.pause * (1 << (rounds_begun_ - 1));
  ++rounds_begun_;
}

Result<std::unique_ptr<Connection>> Dialer::try_connect(TimePoint now) {
  FARANDOLE_TRY(failed_);
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    FARANDOLE_TRY_ASSIGN(auto connection, advance(current, now));
    if (connection != nullptr) {
      attempts_.erase(current);
      while (!attempts_.empty()) drop(attempts_.begin());
      failed_ = Status::fix_call("this dialer has handed out its connection");
      return connection;
    }
    if (confirming_) break;  // the only attempt that is left
  }
  if (now >= deadline_) return failed_ = failure("there was no connection in time");
  while (!confirming_ && !waiting_.empty() && next_start_ <= now) FARANDOLE_TRY(begin_next(now));
  if (attempts_.empty() && waiting_.empty()) {
    if (rounds_begun_ >= options_.rounds) return failed_ = failure("no address works");
    begin_round(now);
  }
  return std::unique_ptr<Connection>();
}

Status Dialer::begin_next(TimePoint now) {
  const std::size_t index = waiting_.front();
  waiting_.pop_front();
  Target& target = targets_[index];
  ++target.tries;
  auto wire = TcpConnection::dial(target.address, options_.from, options_.tcp);
  if (!wire.ok()) {
    target.last_error = wire.status();
    return {};  // the next address follows without a pause
  }
  auto session = TlsSession::dial(context_, *std::move(wire), options_.link);
  FARANDOLE_TRY(events_.add(session->descriptor(), index, true));
  attempts_.push_back({.target = index,
                       .session = std::move(session),
                       .deadline = now + options_.attempt_time_max});
  next_start_ = now + options_.pause;
  return {};
}

// Returns null unless the connection is established.
Result<std::unique_ptr<Connection>> Dialer::advance(Attempts::iterator attempt, TimePoint now) {
  TlsSession& session = *attempt->session;
  const auto progress = session.try_handshake();
  if (!progress.ok() && session.was_turned_away()) was_turned_away_ = true;
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
  if (*progress == TlsSession::Progress::kConfirming && !confirming_) keep_only(attempt);
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

void Dialer::give_up(Attempts::iterator attempt, const Status& why, TimePoint now) {
  targets_[attempt->target].last_error = why;
  drop(attempt);
  confirming_ = false;
  if (!waiting_.empty()) next_start_ = std::min(next_start_, now);
}

void Dialer::keep_only(Attempts::iterator chosen) {
  confirming_ = true;
  // The peer may already have accepted this connection, and it accepts only one. So only the
  // deadline of the dialer ends this attempt.
  chosen->deadline = TimePoint::max();
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    if (current == chosen) continue;
    waiting_.push_front(current->target);
    drop(current);
  }
}

Status Dialer::failure(const char* why) const {
  std::string text = format_text("cannot connect to {}: {}", name_of(options_.link.listener), why);
  for (const Target& target : targets_) {
    const auto underway = std::ranges::any_of(
        attempts_, [&](const Attempt& attempt) { return &targets_[attempt.target] == &target; });
    const std::string last = underway && confirming_   ? "it has not confirmed the connection yet"
                             : !target.last_error.ok() ? target.last_error.message()
                             : underway                ? "no answer yet"
                                                       : "not tried yet";
    text += format_text("; {} (tried {} times): {}", target.address.text(), target.tries, last);
  }
  return Status::rebuild_group(text + "; check that the peer runs and that no firewall blocks it");
}

TimePoint Dialer::next_deadline() const {
  TimePoint next = deadline_;
  for (const Attempt& attempt : attempts_) next = std::min(next, attempt.deadline);
  if (!confirming_ && !waiting_.empty()) next = std::min(next, next_start_);
  return next;
}

}  // namespace farandole
