#include "probe/address_trial.h"

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/format.h"
#include "network/tcp/tcp_connection.h"

namespace farandole {
namespace {

constexpr std::uint64_t kJob = 1;  // each run has a new secret, so all runs can use the same job id

auto whole_seconds(Duration time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

Link link_between_probes(std::uint32_t from, std::uint32_t to) {
  return {.job = kJob,
          .epoch = 0,
          .dialer = {Role::kLauncher, from},
          .listener = {Role::kLauncher, to},
          .seals_data = true};
}

ConnectFailure classify_failure(const std::string& error, bool was_connected) {
  const auto error_contains = [&error](int number) {
    return error.find(std::strerror(number)) != std::string::npos;
  };
  if (error_contains(ECONNREFUSED)) return ConnectFailure::kRefused;
  if (error_contains(EHOSTUNREACH) || error_contains(ENETUNREACH) || error_contains(EHOSTDOWN) ||
      error_contains(ENETDOWN))
    return ConnectFailure::kNoRoute;
  if (error_contains(EACCES) || error_contains(EPERM))
    return ConnectFailure::kNoRoute;  // a firewall on this host rejects the packets
  if (was_connected) return ConnectFailure::kTurnedAway;
  return error_contains(ETIMEDOUT) ? ConnectFailure::kNoAnswer : ConnectFailure::kOther;
}

AddressTrial::AddressTrial(const TlsContext& context, const Link& link,
                           const SocketAddress& address, const TrialOptions& options, TimePoint now)
    : options_(options),
      attempt_{.to = link.listener.number, .address = address.text()},
      deadline_(now + options.connect_time_max) {
  auto wire = TcpConnection::dial(address, std::nullopt, {});
  if (wire.ok()) {
    session_ = TlsSession::dial(context, *std::move(wire), link);
    return;
  }
  failed_attempt(classify_failure(wire.status().message(), false), wire.status().message());
  deadline_ = now;
}

std::optional<Attempt> AddressTrial::advance(TimePoint now) {
  if (!session_) return attempt_;
  if (!is_connected_) {
    const auto progress = session_->try_handshake();
    if (!progress.ok()) {
      const std::string& error = progress.status().message();
      return failed_attempt(classify_failure(error, session_->reached_peer()), error);
    }
    if (*progress != TlsSession::Progress::kDone)
      return now < deadline_ ? std::nullopt : timed_out_attempt();
    is_connected_ = true;
    if (!options_.measures) return attempt_;
    measuring_end_.emplace(*session_, ExchangeOptions(), now);
    deadline_ = now + options_.measure_time_max;
  }
  const auto measurement = measuring_end_->advance(now);
  if (!measurement.ok())
    return failed_attempt(ConnectFailure::kOther, measurement.status().message());
  if (!*measurement) return now < deadline_ ? std::nullopt : timed_out_attempt();
  attempt_.round_trip_seconds = (*measurement)->round_trip_seconds;
  attempt_.bytes_per_second = (*measurement)->bytes_per_second;
  return attempt_;
}

bool AddressTrial::wants_to_send() const {
  if (!session_) return false;
  // A socket becomes writable when its connection is established.
  return measuring_end_ ? measuring_end_->wants_to_send() : session_->has_unsent();
}

std::optional<Attempt> AddressTrial::failed_attempt(ConnectFailure failure,
                                                    const std::string& error) {
  attempt_.failure = failure;
  attempt_.error = error;
  session_.reset();
  return attempt_;
}

// Returns the attempt after its deadline has passed.
std::optional<Attempt> AddressTrial::timed_out_attempt() const {
  Attempt attempt = attempt_;
  if (is_connected_) {
    attempt.failure = ConnectFailure::kStalled;
    attempt.error = format_text("connected, but {} within {} s",
                                measuring_end_->has_round_trip() ? "larger messages do not arrive"
                                                                 : "small messages get no answer",
                                whole_seconds(options_.measure_time_max));
  } else if (session_->reached_peer()) {
    attempt.failure = ConnectFailure::kStalled;
    attempt.error = format_text("connected, but no answer within {} s",
                                whole_seconds(options_.connect_time_max));
  } else {
    attempt.failure = ConnectFailure::kNoAnswer;
    attempt.error = format_text("no answer within {} s", whole_seconds(options_.connect_time_max));
  }
  return attempt;
}

}  // namespace farandole
