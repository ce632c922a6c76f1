// Measures on one host the connections that are used between hosts. Sealed (encrypted) and open
// connections over loopback take turns. Each round sends the same number of bytes from one thread
// to another. Prints a JSON list. Its value "s/GB" is the processor time per GB, of both ends
// together. The arguments are MiB per round and the number of rounds. Their defaults are 256 and 5.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "network/tcp/dialer.h"
#include "network/tcp/tcp_listener.h"

namespace farandole::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPieceBytes = 512UL << 10U;
constexpr int kPings = 2000;

struct Ends {
  std::unique_ptr<Connection> dialing;
  std::unique_ptr<Connection> listening;
};

template <class T>
T value_or_exit(Result<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void sleep_until_ready(const Connection& connection, short events) {
  pollfd entry{connection.descriptor(), events, 0};
  ::poll(&entry, 1, -1);
}

Ends connect(const TlsContext& context, bool sealed) {
  const Link link{
      .dialer = {Role::kWorker, 1}, .listener = {Role::kWorker, 0}, .seals_data = sealed};
  ListenOptions listen;
  listen.addresses = {value_or_exit(SocketAddress::parse("127.0.0.1:0"))};
  listen.acceptance = {.self = link.listener, .seals_data = sealed};
  const auto listener = value_or_exit(TcpListener::open(context, listen));
  DialOptions dial;
  dial.addresses = listener->addresses();
  dial.link = link;
  const auto dialer = value_or_exit(
      Dialer::start(context, dial, Clock::now(), Clock::now() + std::chrono::minutes(1)));
  Ends ends;
  while (!ends.dialing || !ends.listening) {
    if (!ends.dialing) ends.dialing = value_or_exit(dialer->try_connect(Clock::now()));
    if (!ends.listening) ends.listening = value_or_exit(listener->try_accept(Clock::now()));
  }
  return ends;
}

void send_all(Connection& connection, std::span<const std::byte> piece, std::size_t bytes) {
  for (std::size_t sent = 0; sent < bytes || connection.has_unsent();) {
    const auto rest = piece.subspan(sent % piece.size());
    const std::size_t count = value_or_exit(
        connection.try_send_data({}, rest.first(std::min(rest.size(), bytes - sent))));
    sent += count;
    if (count == 0 && (sent < bytes || connection.has_unsent()))
      sleep_until_ready(connection, POLLOUT);
  }
}

void receive_all(Connection& connection, std::span<std::byte> piece, std::size_t bytes) {
  for (std::size_t received = 0; received < bytes;) {
    const auto rest = piece.subspan(received % piece.size());
    const std::size_t count = value_or_exit(
        connection.try_receive_data(rest.first(std::min(rest.size(), bytes - received))));
    received += count;
    if (count == 0) sleep_until_ready(connection, POLLIN);
  }
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// One thread plays both ends, so that no wake-up of another thread is measured.
double microseconds_per_ping(Ends& ends) {
  std::vector<std::byte> message(64);
  const auto start = Clock::now();
  for (int i = 0; i < kPings; ++i) {
    send_all(*ends.dialing, message, message.size());
    receive_all(*ends.listening, message, message.size());
    send_all(*ends.listening, message, message.size());
    receive_all(*ends.dialing, message, message.size());
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kPings;
}

void measure(const TlsContext& context, bool sealed, std::size_t bytes, const char* separator) {
  const auto begin = Clock::now();
  Ends ends = connect(context, sealed);
  const double connect_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  const double ping_us = microseconds_per_ping(ends);
  const std::vector<std::byte> sent(kPieceBytes, std::byte{0x3c});
  std::vector<std::byte> received(kPieceBytes);
  const double processor_start = processor_seconds();
  const auto start = Clock::now();
  {
    const std::jthread sender([&] { send_all(*ends.dialing, sent, bytes); });
    receive_all(*ends.listening, received, bytes);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::printf(R"(%s{"link": "%s", "GB/s": %.2f, "s/GB": %.3f, "round trip us": %.1f, )", separator,
              sealed ? "sealed" : "open", gigabytes / seconds,
              (processor_seconds() - processor_start) / gigabytes, ping_us);
  std::printf(R"("connect us": %.0f})", connect_us);
}

int run(std::size_t bytes, int rounds) {
  const auto context = value_or_exit(TlsContext::make(value_or_exit(JobSecret::generate())));
  const char* separator = "[";
  for (int round = 0; round < rounds; ++round) {
    for (const bool sealed : {true, false}) {
      measure(*context, sealed, bytes, separator);
      separator = ",\n ";
    }
  }
  std::printf("]\n");
  return 0;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** arguments) {
  const std::size_t mebibytes = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 256;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 5;
  return farandole::bench::run(mebibytes << 20U, rounds);
}
