// SimulatedConnection: two ends of a connection in memory, for tests. A seed determines how many
// bytes each call moves, so the bytes move in pieces of all sizes, as on a network.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "network/connection.h"

namespace farandole {

// The state that both ends share. A test can read and change it.
struct SimulatedWire {
  explicit SimulatedWire(std::uint64_t seed) : random(seed) {}

  struct Direction {
    Bytes sent;                // all bytes that were ever sent in this direction
    std::size_t received = 0;  // how many of these bytes the other end has received
    bool ended = false;
  };

  std::mt19937_64 random;
  std::size_t piece_bytes_max = 4096;        // the most bytes that one call moves
  std::size_t unread_bytes_max = 64 * 1024;  // the most unread bytes in one direction
  bool always_moves = false;                 // each call moves as many bytes as the limits allow
  std::array<Direction, 2> directions;       // by the index of the sending end
};

class SimulatedConnection final : public Connection {
 public:
  // Both ends share the wire, because either end may be destroyed first.
  SimulatedConnection(std::shared_ptr<SimulatedWire> wire, std::size_t end)
      : wire_(std::move(wire)), end_(end) {
    peer_.addresses = end == 0 ? "simulated 0 -> 1" : "simulated 1 -> 0";
  }
  ~SimulatedConnection() override { close(); }
  SimulatedConnection(const SimulatedConnection&) = delete;
  SimulatedConnection& operator=(const SimulatedConnection&) = delete;

  Result<std::size_t> try_send(std::span<const std::byte> first,
                               std::span<const std::byte> second) override {
    auto& out = wire_->directions[end_];
    if (out.ended || wire_->directions[1 - end_].ended)
      return Status::rebuild_group("the simulated connection is closed");
    std::size_t bytes_taken = 0;
    for (const auto part : {first, second}) {
      const std::size_t room = wire_->unread_bytes_max -
                               std::min(wire_->unread_bytes_max, out.sent.size() - out.received);
      const std::size_t count = piece_bytes(std::min(part.size(), room));
      const auto sent = part.first(count);
      out.sent.insert(out.sent.end(), sent.begin(), sent.end());
      bytes_taken += count;
      if (count < part.size()) break;
    }
    return bytes_taken;
  }

  Result<std::size_t> try_receive(std::span<std::byte> into) override {
    auto& in = wire_->directions[1 - end_];
    const std::size_t available = in.sent.size() - in.received;
    if (available == 0 && in.ended)
      return Status::rebuild_group("the peer has ended the simulated connection");
    const std::size_t count = piece_bytes(std::min(available, into.size()));
    std::copy_n(in.sent.begin() + static_cast<std::ptrdiff_t>(in.received), count, into.begin());
    in.received += count;
    return count;
  }

  bool has_unsent() const override { return false; }
  bool has_received() const override {
    const auto& in = wire_->directions[1 - end_];
    return in.received < in.sent.size();
  }
  int descriptor() const override { return -1; }
  void close() override { wire_->directions[end_].ended = true; }
  const ConnectionPeer& peer() const override { return peer_; }

 private:
  // Returns how many of `bytes` bytes one call moves. In a quarter of the calls, the number is the
  // largest that the limit of a piece allows; otherwise it is random.
  std::size_t piece_bytes(std::size_t bytes) {
    if (wire_->random() % 4 == 0 || wire_->always_moves)
      return std::min(bytes, wire_->piece_bytes_max);
    return wire_->random() % (std::min(bytes, wire_->piece_bytes_max) + 1);
  }

  std::shared_ptr<SimulatedWire> wire_;
  std::size_t end_;
  ConnectionPeer peer_;
};

}  // namespace farandole
