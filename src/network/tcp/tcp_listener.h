// TcpListener: accepts the TCP connections of this job's processes, and turns strangers away. It
// hands out a connection only after its peer has proven who it is.
//
// Strangers cost a bounded amount: at most `handshakes_max` connections are in a handshake, and
// each handshake has a deadline and receives at most 4 KiB. If there are too many handshakes, the
// oldest connection of the source with the most handshakes is closed. So idle strangers from a few
// addresses displace each other, but no member.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/descriptor.h"
#include "base/time_point.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "network/tcp/event_set.h"
#include "network/tcp/socket_address.h"
#include "network/tcp/tcp_connection.h"
#include "network/tcp/tls_session.h"

namespace farandole {

struct ListenOptions {
  std::vector<SocketAddress> addresses{};  // IPv4 and IPv6; their ports are ignored
  // One port for all addresses: the first free one of the range. 0 and 0: any free one.
  std::uint16_t port_first = 0;
  std::uint16_t port_last = 0;
  AcceptedLinks acceptance{};
  std::size_t handshakes_max = 64;
  Duration handshake_time_max = std::chrono::seconds(5);
  TcpOptions tcp{};
};

// One thread at a time may use it; no function blocks. To sleep, poll descriptor() for POLLIN, up
// to next_deadline().
class TcpListener {
 public:
  // How many connections were accepted, rejected and so on since the start.
  struct Counts {
    std::uint64_t accepted = 0;
    std::uint64_t rejected = 0;  // wrong bytes, wrong secret, wrong job or epoch, or closed early
    std::uint64_t expired = 0;   // the handshake took too long
    std::uint64_t evicted = 0;   // closed because there were too many, or no free descriptors
  };

  // Binds only the given addresses. `context` is borrowed, also by the connections. Errors:
  // kFixCall if there is no address, or one is not of this host; kStop if no port is free or a
  // system call fails.
  static Result<std::unique_ptr<TcpListener>> open(const TlsContext& context,
                                                   const ListenOptions& options);

  // Does all that can be done now, and returns the next connection whose peer is proven; null if
  // there is none. Call it until it returns null. Errors: kStop if sockets cannot be watched.
  Result<std::unique_ptr<Connection>> try_accept(TimePoint now);

  // From now on, accepts the links of `acceptance`, for example those of the next epoch.
  // Connections that were not handed out are closed.
  void set_acceptance(const AcceptedLinks& acceptance);

  // For a forked child: closes its copies of the sockets, so that they do not outlive those of the
  // parent. The epoll belongs to the parent, too, so it stays as it is. Afterwards, this object may
  // only be leaked.
  void close_sockets();

  // Ends listening even if forked children also have the sockets. So the port is free for the next
  // job.
  void stop_listening();

  int descriptor() const { return events_.descriptor(); }  // borrowed, for poll()
  TimePoint next_deadline() const;  // of the handshakes; TimePoint::max() without one
  const std::vector<SocketAddress>& addresses() const { return addresses_; }  // with the port
  const Counts& counts() const { return counts_; }
  // Why the last connection was rejected, for people who look for a missing member.
  const Status& last_rejection() const { return last_rejection_; }

 private:
  struct Handshake {
    std::uint64_t id;
    std::unique_ptr<TlsSession> session;
    SocketAddress source;  // reduced to the network that one sender usually owns
    TimePoint deadline;
    bool waits_to_send = false;
  };
  using Handshakes = std::list<Handshake>;  // the oldest first

  TcpListener(const TlsContext& context, const ListenOptions& options, EventSet events)
      : context_(context), options_(options), events_(std::move(events)) {}
  Status bind_all();
  Status bind_at(std::uint16_t port);
  void accept_from(const Descriptor& socket, TimePoint now);
  bool make_room_for_descriptor(const Descriptor& socket);
  void begin_handshake(Descriptor socket, TimePoint now);
  Status advance(Handshakes::iterator handshake);
  void drop(Handshakes::iterator handshake);
  void reject(Handshakes::iterator handshake, const Status& why);
  void expire(TimePoint now);
  void evict_one();

  const TlsContext& context_;
  ListenOptions options_;
  EventSet events_;
  std::vector<Descriptor> sockets_;
  std::vector<SocketAddress> addresses_;
  Descriptor reserve_;  // closed for a moment to turn a connection away if no descriptor is free
  Handshakes handshakes_;
  std::vector<std::unique_ptr<Connection>> proven_;
  std::uint64_t next_id_ = 0;
  Counts counts_;
  Status last_rejection_;
};

}  // namespace farandole
