// AddressTrial: one attempt of a probe to connect to one address of another probe, with the sealed
// connections of a job, and to measure the connection.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/time_point.h"
#include "network/link.h"
#include "network/tcp/socket_address.h"
#include "network/tcp/tls_session.h"
#include "probe/exchange.h"
#include "probe/survey.h"

namespace farandole {

// Returns the link of a connection between two probes. `from` and `to` are indices in the list of
// hosts.
Link link_between_probes(std::uint32_t from, std::uint32_t to);

// Classifies a failure by the text of its error. `was_connected` is true if the failure came after
// the TCP connection was established.
ConnectFailure classify_failure(const std::string& error, bool was_connected);

struct TrialOptions {
  bool measures = false;
  // A rank has the same time to connect to one address.
  Duration connect_time_max = std::chrono::seconds(5);
  // The time for the measurement begins when the connection is established.
  Duration measure_time_max = std::chrono::seconds(5);
};

// Only one thread may use it, and no function blocks. To sleep, poll descriptor() for POLLIN, and
// for POLLOUT if wants_to_send(), up to deadline().
class AddressTrial {
 public:
  // `context` is borrowed.
  AddressTrial(const TlsContext& context, const Link& link, const SocketAddress& address,
               const TrialOptions& options, TimePoint now);

  // Does all that can be done now. Returns the attempt when its outcome is known.
  std::optional<Attempt> advance(TimePoint now);
  int descriptor() const { return session_ ? session_->descriptor() : -1; }
  bool wants_to_send() const;
  // Whether received bytes are already in our memory. poll() does not report these bytes.
  bool has_received() const { return session_ && session_->has_received(); }
  TimePoint deadline() const { return deadline_; }

 private:
  std::optional<Attempt> failed_attempt(ConnectFailure failure, const std::string& error);
  std::optional<Attempt> timed_out_attempt() const;

  TrialOptions options_;
  Attempt attempt_;
  std::unique_ptr<TlsSession> session_;
  bool is_connected_ = false;  // the other end has proven that it is the right probe
  std::optional<MeasuringEnd> measuring_end_;
  TimePoint deadline_;
};

}  // namespace farandole
