// For tests of connections: a job with a known secret, and loops that complete the handshakes of
// both ends.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "network/simulated_connection_in_test.h"
#include "network/tcp/dialer.h"
#include "network/tcp/job_secret.h"
#include "network/tcp/tcp_listener.h"
#include "network/tcp/tls_session.h"

namespace farandole {

inline TimePoint test_deadline() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

inline Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Returns a secret that consists of this character.
inline JobSecret secret_of(char fill) {
  std::array<int, 2> pipe_ends{-1, -1};
  EXPECT_EQ(::pipe(pipe_ends.data()), 0);
  const Descriptor read_end(pipe_ends[0]);
  const Descriptor write_end(pipe_ends[1]);
  const std::string bytes(kSecretBytes, fill);
  EXPECT_EQ(::write(write_end.get(), bytes.data(), bytes.size()),
            static_cast<ssize_t>(kSecretBytes));
  auto secret = JobSecret::read_descriptor(read_end.get(), test_deadline());
  EXPECT_TRUE(secret.ok()) << secret.status().message();
  return *std::move(secret);
}

inline std::unique_ptr<TlsContext> context_of(char fill) {
  auto context = TlsContext::make(secret_of(fill));
  EXPECT_TRUE(context.ok()) << context.status().message();
  return *std::move(context);
}

// A forked child, like a DataLoader worker. It has copies of all descriptors until this object is
// destroyed.
class ForkedChild {
 public:
  // Forks a child that calls `action`, and waits until `action` has returned in the child.
  template <class Action>
  explicit ForkedChild(Action action) {
    std::array<int, 2> pipe_ends{-1, -1};
    EXPECT_EQ(::pipe(pipe_ends.data()), 0);
    const Descriptor read_end(pipe_ends[0]);
    const Descriptor write_end(pipe_ends[1]);
    pid_ = ::fork();
    char done = 1;
    if (pid_ == 0) {
      action();
      if (::write(write_end.get(), &done, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    EXPECT_EQ(::read(read_end.get(), &done, 1), 1);
  }
  ~ForkedChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

 private:
  pid_t pid_ = -1;
};

inline bool is_readable(int descriptor, int limit_ms) {
  pollfd entry{descriptor, POLLIN, 0};
  return ::poll(&entry, 1, limit_ms) != 0;
}

// Worker 1 dials worker 0, in epoch 3 of job 7.
inline Link test_link() {
  return {.job = 7,
          .epoch = 3,
          .dialer = {Role::kWorker, 1},
          .listener = {Role::kWorker, 0},
          .seals_data = true};
}

inline AcceptedLinks test_acceptance() {
  return {.job = 7, .epoch = 3, .self = {Role::kWorker, 0}, .seals_data = true};
}

// Both ends of a handshake over a simulated wire.
struct TlsPair {
  TlsPair(std::uint64_t seed, const TlsContext& dialing, const TlsContext& listening,
          const Link& link = test_link(), const AcceptedLinks& acceptance = test_acceptance())
      : wire(std::make_shared<SimulatedWire>(seed)),
        dialer(TlsSession::dial(dialing, std::make_unique<SimulatedConnection>(wire, 0), link)),
        listener(TlsSession::listen(listening, std::make_unique<SimulatedConnection>(wire, 1),
                                    acceptance)) {}

  // Continues both handshakes until both are done. If one end fails, closes this end, so that the
  // other end fails, too.
  void shake_hands() {
    for (int i = 0; i < 10'000 && !(dialer_done && listener_done); ++i) {
      advance_end(*dialer, dialer_done, dialer_error);
      if (!dialer_error.ok()) dialer->close();
      advance_end(*listener, listener_done, listener_error);
      if (!listener_error.ok()) listener->close();
    }
  }
  bool is_proven() const {
    return dialer_done && listener_done && dialer_error.ok() && listener_error.ok();
  }

  std::shared_ptr<SimulatedWire> wire;
  std::unique_ptr<TlsSession> dialer;
  std::unique_ptr<TlsSession> listener;
  Status dialer_error;
  Status listener_error;

 private:
  static void advance_end(TlsSession& session, bool& done, Status& error) {
    if (done) return;
    const auto progress = session.try_handshake();
    if (!progress.ok()) error = progress.status();
    done = !progress.ok() || *progress == TlsSession::Progress::kDone;
  }

  bool dialer_done = false;
  bool listener_done = false;
};

// Sends all bytes from one end and receives them at the other end, in turns. Returns the received
// bytes; after an error, some bytes are missing.
inline Bytes transfer(Connection& sender, Connection& receiver, std::span<const std::byte> bytes) {
  Bytes received(bytes.size());
  std::size_t sent_bytes = 0;
  std::size_t received_bytes = 0;
  const TimePoint limit = test_deadline();
  while (received_bytes < bytes.size() && std::chrono::steady_clock::now() < limit) {
    const auto sent_now = sender.try_send({}, bytes.subspan(sent_bytes));
    if (sent_now.ok()) sent_bytes += *sent_now;
    const auto received_now = receiver.try_receive(std::span(received).subspan(received_bytes));
    if (!received_now.ok()) break;
    received_bytes += *received_now;
  }
  received.resize(received_bytes);
  return received;
}

inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline SocketAddress address_of(const std::string& text) {
  auto address = SocketAddress::parse(text);
  EXPECT_TRUE(address.ok()) << address.status().message();
  return *address;
}

// Sleeps until one of the descriptors is ready or the deadline is reached, but at most for a
// second.
inline void sleep_for(std::initializer_list<int> descriptors, TimePoint deadline) {
  std::vector<pollfd> entries;
  for (const int descriptor : descriptors) entries.push_back({descriptor, POLLIN, 0});
  const auto time_left = std::chrono::ceil<std::chrono::milliseconds>(
      std::min(deadline, test_deadline()) - std::chrono::steady_clock::now());
  const int limit_ms = static_cast<int>(std::clamp<std::int64_t>(time_left.count(), 0, 1000));
  ::poll(entries.data(), entries.size(), limit_ms);
}

}  // namespace farandole
