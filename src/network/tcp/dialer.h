// Dialer: makes one connection to a peer that offers several addresses. Some of the addresses may
// not work. The dialer tries the addresses one after another, and begins with the next address
// before the previous attempt has failed. It keeps the first connection on which the peer proves
// its identity.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/time_point.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "network/tcp/event_set.h"
#include "network/tcp/socket_address.h"
#include "network/tcp/tcp_connection.h"
#include "network/tcp/tls_session.h"

namespace farandole {

struct DialOptions {
  std::vector<SocketAddress> addresses{};           // the best address first
  std::optional<SocketAddress> local_address{};     // used for peers of the same address family
  Link link{};                                      // link.listener is the peer
  Duration pause = std::chrono::milliseconds(250);  // between the attempts at two addresses
  // The time within which the peer must prove its identity.
  Duration attempt_time_max = std::chrono::seconds(5);
  int rounds = 3;  // how often each address is tried; the pauses between the rounds grow
  TcpOptions tcp{};
};

// One thread at a time may use it; no function blocks. To sleep, poll descriptor() for POLLIN, up
// to next_deadline(). The peer accepts at most one connection of a dialer. When the peer has proven
// its identity on one connection and only its confirmation is missing, the dialer ends all other
// attempts. The dialer then waits for the confirmation until its own deadline, because a slow peer
// may already have accepted this connection. It tries the other addresses again only if this
// connection fails.
class Dialer {
 public:
  // `context` must outlive the dialer and the connection. Errors: kFixCall if there is no address;
  // kStop.
  static Result<std::unique_ptr<Dialer>> start(const TlsContext& context,
                                               const DialOptions& options, TimePoint now,
                                               TimePoint deadline);

  // Makes progress without blocking. Returns the connection once it is established, and null until
  // then. Errors, which are final: kRebuildGroup if no address works, or at the deadline; the text
  // has the last error of each address.
  Result<std::unique_ptr<Connection>> try_connect(TimePoint now);

  // Whether a process at one of the addresses has closed a connection during the handshake.
  bool was_rejected() const { return was_rejected_; }

  int descriptor() const { return events_.descriptor(); }  // borrowed, for poll()
  TimePoint next_deadline() const;

 private:
  struct Attempt {
    std::size_t target_index;  // in targets_
    std::unique_ptr<TlsSession> session;
    TimePoint deadline;
    bool waits_to_send = true;
  };
  struct Target {
    SocketAddress address;
    int tries = 0;
    Status last_error{};
  };
  using Attempts = std::list<Attempt>;

  Dialer(const TlsContext& context, const DialOptions& options, EventSet events,
         TimePoint deadline);
  void begin_round(TimePoint now);
  Status begin_next_attempt(TimePoint now);
  Result<std::unique_ptr<Connection>> advance(Attempts::iterator attempt, TimePoint now);
  void drop(Attempts::iterator attempt);
  void give_up(Attempts::iterator attempt, const Status& reason, TimePoint now);
  void drop_all_except(Attempts::iterator chosen);
  Status connect_error(const char* reason) const;

  const TlsContext& context_;
  DialOptions options_;
  EventSet events_;
  TimePoint deadline_;
  std::vector<Target> targets_;
  std::deque<std::size_t> untried_targets_;  // indices of the targets that this round has not tried
  Attempts attempts_;
  bool is_confirming_ = false;  // the only attempt waits for the peer's confirmation
  bool was_rejected_ = false;
  int rounds_begun_ = 0;
  TimePoint next_attempt_time_;
  Status final_error_;
};

}  // namespace farandole
