#include "transport/shm/message_ring.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <random>
#include <thread>

#include "transport/shm/segment.h"
#include "transport/shm/sleep_in_test.h"

namespace farandole {
namespace {

Bytes message_of(std::size_t bytes, unsigned seed) {
  Bytes message(bytes);
  for (std::size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(seed + i * 7);
  return message;
}

// The two ends of one queue, from rank 0 to rank 1.
struct RingEnds {
  std::shared_ptr<Segment> bells =
      Segment::create("farandole-test", Doorbells::bytes_needed(2)).value();
  std::shared_ptr<Segment> memory =
      Segment::create("farandole-test", MessageRing::bytes_needed()).value();
  Doorbells sender_bells{bells->data(), 0, 2};
  Doorbells receiver_bells{bells->data(), 1, 2};
  MessageRing sender{memory->data(), sender_bells, 1};
  MessageRing receiver{memory->data(), receiver_bells, 0};
};

TEST(MessageRing, IsEmptyAtFirst) {
  RingEnds ends;
  EXPECT_FALSE(ends.receiver.try_receive().has_value());
}

TEST(MessageRing, KeepsOrderAndContentWhenItWrapsAround) {
  RingEnds ends;
  std::mt19937 random(7);
  std::deque<Bytes> expected_messages;
  for (unsigned i = 0; i < 3000; ++i) {
    auto message = message_of(random() % (i % 10 == 0 ? 30'000 : 300), i);
    if (ends.sender.try_send(message)) expected_messages.push_back(std::move(message));
    if (random() % 2 == 0) continue;
    const auto received = ends.receiver.try_receive();
    ASSERT_EQ(received.has_value(), !expected_messages.empty());
    if (!received) continue;
    ASSERT_EQ(*received, expected_messages.front());
    expected_messages.pop_front();
  }
}

TEST(MessageRing, FillsCompletelyAndMakesRoomAgain) {
  RingEnds ends;
  const Bytes half(MessageRing::kCapacityBytes / 2);
  const Bytes second(MessageRing::kCapacityBytes / 2 - 16);
  EXPECT_TRUE(ends.sender.try_send(half));
  EXPECT_FALSE(ends.sender.try_send(half));
  EXPECT_TRUE(ends.sender.try_send(second));
  EXPECT_FALSE(ends.sender.try_send({})) << "the ring is full";
  EXPECT_EQ(ends.receiver.try_receive(), half);
  EXPECT_TRUE(ends.sender.try_send({}));
  EXPECT_EQ(ends.receiver.try_receive(), second);
  EXPECT_EQ(ends.receiver.try_receive(), Bytes());
  EXPECT_FALSE(ends.receiver.try_receive().has_value());
}

TEST(MessageRingDeathTest, RejectsMessagesThatNeverFit) {
  RingEnds ends;
  const Bytes too_long(MessageRing::kCapacityBytes / 2 + 1);
  EXPECT_DEATH(ends.sender.try_send(too_long), "half of its ring");
}

TEST(MessageRing, BothEndsSleepWithoutLosingABell) {
  RingEnds ends;
  constexpr unsigned kMessages = 3000;
  const auto size_of = [](unsigned i) { return (i * 37) % 9000; };
  std::jthread sending_thread([&] {
    for (unsigned i = 0; i < kMessages; ++i) {
      const auto message = message_of(size_of(i), i);
      while (!ends.sender.try_send(message)) {
        const auto ticket = ends.sender_bells.prepare_sleep();
        const bool sent = ends.sender.try_send(message);
        if (sent) ends.sender_bells.cancel_sleep();
        if (sent) break;
        ASSERT_TRUE(sleep_and_see_bell(ends.sender_bells, ticket)) << "message " << i;
      }
    }
  });
  for (unsigned i = 0; i < kMessages; ++i) {
    auto received = ends.receiver.try_receive();
    while (!received) {
      const auto ticket = ends.receiver_bells.prepare_sleep();
      received = ends.receiver.try_receive();
      if (received)
        ends.receiver_bells.cancel_sleep();
      else
        ASSERT_TRUE(sleep_and_see_bell(ends.receiver_bells, ticket)) << "message " << i;
    }
    ASSERT_EQ(*received, message_of(size_of(i), i));
  }
}

}  // namespace
}  // namespace farandole
