// TcpListener: accepts the TCP connections of this job's processes, and rejects all other
// connections. It returns a connection only after the peer has proven its identity.
//
// The cost of strangers is bounded: at most `handshakes_max` connections are in a handshake, and
// each handshake has a deadline and receives at most 4 KiB. If there are too many handshakes, the
// oldest connection from the source with the most handshakes is closed. So idle strangers from a
// few addresses displace each other, but not the members.
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
  // The first free port of this range is used for all addresses. If both ports are 0, any free port
  // is used.
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
  // The numbers of connections since the start, by result.
  struct Counts {
    std::uint64_t accepted = 0;
    // The peer has sent wrong bytes, has another secret, job or epoch, or has closed the
    // connection.
    std::uint64_t rejected = 0;
    std::uint64_t expired = 0;  // the handshake took too long
    std::uint64_t evicted = 0;  // too many handshakes, or no free descriptors
  };

  // Binds only the given addresses. `context` must outlive the listener and the connections.
  // Errors: kFixCall if there is no address or an address is not of this host; kStop if no port is
  // free or a system call fails.
  static Result<std::unique_ptr<TcpListener>> open(const TlsContext& context,
                                                   const ListenOptions& options);

  // Makes progress without blocking. Returns the next connection whose peer has proven its
  // identity; null if there is none. Call it until it returns null. Errors: kStop if sockets cannot
  // be watched.
  Result<std::unique_ptr<Connection>> try_accept(TimePoint now);

  // From now on, accepts the links of `acceptance`, for example the links of the next epoch. Closes
  // the connections that try_accept() has not returned yet.
  void set_acceptance(const AcceptedLinks& acceptance);

  // For a forked child: closes its copies of the sockets, so that they do not outlive the parent's
  // sockets. Does not change the epoll instance, because the child shares it with the parent.
  // Afterwards, this object must be leaked.
  void close_sockets();

  // Ends listening, even if forked children have copies of the sockets, so that the port is free
  // for the next job.
  void stop_listening();

  int descriptor() const { return events_.descriptor(); }  // borrowed, for poll()
  // Returns the next deadline of a handshake; TimePoint::max() if there is no handshake.
  TimePoint next_deadline() const;
  // Returns the addresses at which the listener listens, with their port.
  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  const Counts& counts() const { return counts_; }
  // Why the last connection was rejected. This helps users to find the reason for a missing member.
  const Status& last_rejection() const { return last_rejection_; }

 private:
  struct Handshake {
    std::uint64_t id;
    std::unique_ptr<TlsSession> session;
    SocketAddress source;  // the address, reduced to the network that one sender usually owns
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
  void reject(Handshakes::iterator handshake, const Status& reason);
  void drop_expired(TimePoint now);
  void evict_one_handshake();

  const TlsContext& context_;
  ListenOptions options_;
  EventSet events_;
  std::vector<Descriptor> sockets_;
  std::vector<SocketAddress> addresses_;
  // Reserved for the case that no descriptor is free. Without it, the listener could not accept a
  // connection in order to close it.
  Descriptor reserve_descriptor_;
  Handshakes handshakes_;
  std::vector<std::unique_ptr<Connection>> proven_connections_;
  std::uint64_t next_id_ = 0;
  Counts counts_;
  Status last_rejection_;
};

}  // namespace farandole
