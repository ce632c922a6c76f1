// Two channels that are connected with each other by a simulated connection.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "channels/peer_channel.h"
#include "network/simulated_connection_in_test.h"

namespace farandole {

struct ChannelPair {
  explicit ChannelPair(std::uint64_t seed, std::size_t piece_bytes_max = 4096)
      : wire(std::make_shared<SimulatedWire>(seed)) {
    wire->piece_bytes_max = piece_bytes_max;
    left.attach(std::make_unique<SimulatedConnection>(wire, 0));
    right.attach(std::make_unique<SimulatedConnection>(wire, 1));
  }

  // Advances both ends until no bytes have moved for many rounds. One round is not enough, because
  // a simulated connection sometimes takes no bytes although it has room.
  void advance_until_idle() {
    for (int idle_rounds = 0; idle_rounds < 50; ++idle_rounds) {
      for (auto* const end : {&left, &right}) {
        const auto moved = end->advance();
        ASSERT_EQ(moved.status(), Status());
        if (*moved) idle_rounds = 0;
      }
    }
  }

  std::shared_ptr<SimulatedWire> wire;
  PeerChannel left{7};
  PeerChannel right{7};
};

}  // namespace farandole
