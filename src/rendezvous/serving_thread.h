// For tests: a StoreServer and a thread that serves its clients, like the loop of the launcher. It
// can also serve clients of other hosts, over the loopback interface.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/guarded.h"
#include "rendezvous/store_listener.h"
#include "rendezvous/store_server.h"

namespace farandole {

class ServingThread {
 public:
  // Creates the workers' sockets before it starts the thread, because only one thread at a time may
  // use the server.
  explicit ServingThread(int clients, const TlsContext* context = nullptr,
                         const ListenOptions& options = {})
      : stop_event_(::eventfd(0, EFD_CLOEXEC)) {
    auto server = StoreServer::create("the launcher");
    CHECK(server.ok(), "a test needs its server");
    server_ = std::move(server).value();
    for (int i = 0; i < clients; ++i) {
      auto client_socket = server_->add_client("rank " + std::to_string(i));
      CHECK(client_socket.ok(), "a test needs its clients");
      client_ends_.push_back(std::move(client_socket).value());
    }
    if (context != nullptr) listen(*context, options);
    thread_ = std::jthread([this] { serve(); });
  }
  ~ServingThread() { stop(); }
  ServingThread(const ServingThread&) = delete;
  ServingThread& operator=(const ServingThread&) = delete;

  // The worker's end of a client's socket.
  Descriptor& client_end(int client) { return client_ends_.at(static_cast<std::size_t>(client)); }

  // Closes all connections, as if the launcher had ended.
  void stop() {
    if (!thread_.joinable()) return;
    const std::uint64_t increment = 1;
    CHECK(::write(stop_event_.get(), &increment, sizeof(increment)) == sizeof(increment),
          "an eventfd takes a count");
    thread_.join();
    listener_.reset();
    server_.reset();
  }

  // Returns the place of the server, for RemoteStore::Options::places.
  const std::string& place() const { return place_; }

  std::vector<std::string> complaints() { return *complaints_.lock(); }

 private:
  void listen(const TlsContext& context, ListenOptions options) {
    options.addresses = {SocketAddress::parse_ip("127.0.0.1").value()};
    auto listener = StoreListener::open(context, options, *server_);
    CHECK(listener.ok(), "the loopback has a free port");
    listener_ = std::move(listener).value();
    place_ = listener_->addresses().front().text();
  }

  void serve() {
    for (;;) {
      // poll() ignores a descriptor of −1.
      std::array<pollfd, 3> entries{
          pollfd{server_->ready_descriptor(), POLLIN, 0}, pollfd{stop_event_.get(), POLLIN, 0},
          pollfd{listener_ ? listener_->ready_descriptor() : -1, POLLIN, 0}};
      ::poll(entries.data(), entries.size(), -1);
      if (entries[1].revents != 0) return;
      if (listener_)
        for (auto& line : listener_->serve_ready()) complaints_.lock()->push_back(std::move(line));
      for (auto& line : server_->serve_ready()) complaints_.lock()->push_back(std::move(line));
    }
  }

  Descriptor stop_event_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreListener> listener_;
  std::string place_;
  std::vector<Descriptor> client_ends_;
  Guarded<std::vector<std::string>> complaints_;
  std::jthread thread_;
};

}  // namespace farandole
