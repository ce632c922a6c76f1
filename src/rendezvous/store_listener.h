// StoreListener: lets processes of the job on other hosts connect to a StoreServer. Other processes
// cannot connect, and the cost of their attempts is bounded (network/tcp/tcp_listener.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "network/tcp/tcp_listener.h"
#include "rendezvous/store_server.h"

namespace farandole {

// Only one thread at a time may use it: the thread that serves the StoreServer.
class StoreListener {
 public:
  // `context` and `server` must outlive this object; `context` must also outlive `server`.
  // `options` have the addresses and ports. Errors: as TcpListener::open().
  static Result<std::unique_ptr<StoreListener>> open(const TlsContext& context,
                                                     ListenOptions options, StoreServer& server);

  // A borrowed descriptor that is readable when serve_ready() has work.
  int ready_descriptor() const { return events_.descriptor(); }
  // Accepts all waiting clients without blocking. Returns a line for every client that could not be
  // accepted.
  std::vector<std::string> serve_ready();

  void stop_listening() { listener_->stop_listening(); }
  // For a forked child; see TcpListener.
  void close_sockets() { listener_->close_sockets(); }
  const std::vector<SocketAddress>& addresses() const { return listener_->addresses(); }
  const TcpListener& tcp() const { return *listener_; }

 private:
  StoreListener(std::unique_ptr<TcpListener> listener, EventSet events, Descriptor timer,
                StoreServer& server)
      : listener_(std::move(listener)),
        events_(std::move(events)),
        timer_(std::move(timer)),
        server_(server) {}
  void set_timer();

  std::unique_ptr<TcpListener> listener_;
  EventSet events_;   // of the listener and the timer
  Descriptor timer_;  // expires when a handshake has taken too long
  StoreServer& server_;
};

}  // namespace farandole
