// Tests the simulated connection itself, because other tests rely on it.
#include <gtest/gtest.h>

#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

TEST(SimulatedConnection, MovesAllBytesInPiecesOfSeveralSizes) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection first_end(wire, 0);
  SimulatedConnection second_end(wire, 1);
  const Bytes sent = random_bytes(300'000, 2);
  EXPECT_EQ(transfer(first_end, second_end, sent), sent);
  EXPECT_EQ(wire->directions[0].sent, sent);
  EXPECT_FALSE(second_end.has_received());
}

TEST(SimulatedConnection, SendsTwoPartsInOrder) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection first_end(wire, 0);
  while (first_end.try_send(bytes_of("head"), bytes_of("body")).value() < 8)
    wire->directions[0].sent = {};
  EXPECT_EQ(wire->directions[0].sent, bytes_of("headbody"));
}

TEST(SimulatedConnection, EndsAfterItsBytes) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  SimulatedConnection first_end(wire, 0);
  SimulatedConnection second_end(wire, 1);
  while (first_end.try_send({}, bytes_of("x")).value() == 0) continue;
  first_end.close();
  std::byte byte{};
  while (true) {
    const auto count = second_end.try_receive({&byte, 1});
    ASSERT_TRUE(count.ok());
    if (*count == 1) break;
  }
  EXPECT_EQ(second_end.try_receive({&byte, 1}).status().code(), StatusCode::kRebuildGroup);
  EXPECT_EQ(second_end.try_send({}, {&byte, 1}).status().code(), StatusCode::kRebuildGroup);
}

}  // namespace
}  // namespace farandole
