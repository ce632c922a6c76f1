// Tests of the simulated connection itself, because other tests trust it.
#include <gtest/gtest.h>

#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

TEST(SimulatedConnection, MovesAllBytesInPiecesOfSeveralSizes) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection one(wire, 0);
  SimulatedConnection other(wire, 1);
  const Bytes sent = random_bytes(300'000, 2);
  EXPECT_EQ(carry(one, other, sent), sent);
  EXPECT_EQ(wire->directions[0].sent, sent);
  EXPECT_FALSE(other.has_received());
}

TEST(SimulatedConnection, SendsTwoPartsInOrder) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection one(wire, 0);
  while (one.try_send(bytes_of("head"), bytes_of("body")).value() < 8)
    wire->directions[0].sent = {};
  EXPECT_EQ(wire->directions[0].sent, bytes_of("headbody"));
}

TEST(SimulatedConnection, EndsAfterItsBytes) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection one(wire, 0);
  SimulatedConnection other(wire, 1);
  while (one.try_send({}, bytes_of("x")).value() == 0) continue;
  one.close();
  std::byte byte{};
  while (true) {
    const auto count = other.try_receive({&byte, 1});
    ASSERT_TRUE(count.ok());
    if (*count == 1) break;
  }
  EXPECT_EQ(other.try_receive({&byte, 1}).status().code(), StatusCode::kRebuildGroup);
  EXPECT_EQ(other.try_send({}, {&byte, 1}).status().code(), StatusCode::kRebuildGroup);
}

}  // namespace
}  // namespace farandole
