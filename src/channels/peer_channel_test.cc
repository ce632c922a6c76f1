#include "channels/peer_channel.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <vector>

#include "channels/channel_pair_in_test.h"
#include "transport/shm/doorbells.h"

namespace farandole {
namespace {

constexpr StepIdentity kStep{.generation = 2, .sequence = 9, .id = 77};

Bytes random_bytes(std::mt19937& random, std::size_t count) {
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(PeerChannel, CarriesTheMessagesOfEachGroupInOrder) {
  std::mt19937 random(1);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ChannelPair pair(seed, seed % 2 == 0 ? 1 : 4096);
    std::map<GroupId, std::vector<Bytes>> sent;
    for (int count = 0; count < 30; ++count) {
      const auto group = static_cast<GroupId>(random() % 3);
      sent[group].push_back(random_bytes(random, random() % 300));
      pair.left.send_message(group, sent[group].back());
    }
    pair.advance_until_idle();
    for (GroupId group = 0; group < 3; ++group) {
      for (const auto& message : sent[group]) EXPECT_EQ(pair.right.next_message(group), message);
      EXPECT_EQ(pair.right.next_message(group), std::nullopt);
    }
  }
}

TEST(PeerChannel, FramesWaitForTheConnection) {
  auto wire = std::make_shared<SimulatedWire>(1);
  PeerChannel left(7);
  PeerChannel right(7);
  right.attach(std::make_unique<SimulatedConnection>(wire, 1));
  left.send_message(0, Bytes(5));
  EXPECT_FALSE(left.advance().value());
  EXPECT_TRUE(left.wants_to_send());
  left.attach(std::make_unique<SimulatedConnection>(wire, 0));
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(left.advance().status(), Status());
    ASSERT_EQ(right.advance().status(), Status());
  }
  EXPECT_EQ(right.next_message(0), Bytes(5));
  EXPECT_FALSE(left.wants_to_send());
}

TEST(PeerChannel, AwaitsTheEntryOfTheStepThatItHasEntered) {
  ChannelPair pair(1);
  const StepIdentity step{.generation = 1, .sequence = 1, .id = 5};
  EXPECT_FALSE(pair.left.awaits_frames());
  pair.left.send_entry(0, step, Bytes(10));
  EXPECT_TRUE(pair.left.awaits_frames());
  pair.advance_until_idle();
  EXPECT_TRUE(pair.left.awaits_frames());
  EXPECT_FALSE(pair.right.awaits_frames());
  pair.right.send_entry(0, step, Bytes(10));
  pair.advance_until_idle();
  EXPECT_FALSE(pair.left.awaits_frames());
  EXPECT_FALSE(pair.right.awaits_frames());
}

TEST(PeerChannel, AwaitsTheDataForWhichThereIsMemory) {
  ChannelPair pair(1);
  const StepIdentity step{.generation = 1, .sequence = 1};
  const Bytes data(1000, std::byte{5});
  Bytes target(1000);
  pair.left.begin(0, step);
  pair.right.begin(0, step);
  pair.right.receive(0, target);
  EXPECT_TRUE(pair.right.awaits_frames());
  pair.left.send(0, data);
  EXPECT_FALSE(pair.left.awaits_frames());
  pair.advance_until_idle();
  EXPECT_EQ(target, data);
  EXPECT_FALSE(pair.right.awaits_frames());
}

TEST(PeerChannel, CanSendWithoutReceiving) {
  constexpr auto kNo = PeerChannel::Receive::kNo;
  ChannelPair pair(1);
  pair.left.send_message(0, Bytes(5));
  pair.right.send_message(0, Bytes(6));
  for (int round = 0; round < 100; ++round) {
    ASSERT_EQ(pair.left.advance().status(), Status());
    ASSERT_EQ(pair.right.advance(kNo).status(), Status());
  }
  EXPECT_EQ(pair.left.next_message(0), Bytes(6));
  EXPECT_EQ(pair.right.next_message(0), std::nullopt);
  EXPECT_TRUE(pair.right.awaits_frames());  // some bytes of the frame have arrived
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.next_message(0), Bytes(5));
}

TEST(PeerChannel, LastFramesAreReceivedIfNothingCanBeSent) {
  for (const int envelopes : {0, 200}) {
    ChannelPair pair(1);
    pair.wire->always_moves = true;
    for (int count = 0; count < envelopes; ++count) {
      EXPECT_TRUE(pair.right.try_send_envelope(Bytes(5), {}));
      ASSERT_EQ(pair.right.advance().status(), Status());
    }
    pair.right.send(Death{3, "it was killed"});
    pair.right.say_goodbye("it has ended");
    for (int round = 0; round < 100; ++round) ASSERT_EQ(pair.right.advance().status(), Status());
    pair.right.connection()->close();
    pair.left.send_message(0, Bytes(5));
    EXPECT_EQ(pair.left.advance(PeerChannel::Receive::kNo).status(), Status());
    EXPECT_EQ(pair.left.next_death(), Death(3, "it was killed"));
    EXPECT_TRUE(pair.left.peer_said_goodbye());
    EXPECT_TRUE(pair.left.is_over());
  }
}

TEST(PeerChannel, AnEntryIsKeptUntilTheNextOneOfItsSlot) {
  ChannelPair pair(1);
  const Bytes note(10, std::byte{3});
  pair.left.send_entry(1, kStep, note);
  pair.advance_until_idle();
  ASSERT_NE(pair.right.entry(1, kStep), nullptr);
  EXPECT_EQ(pair.right.entry(1, kStep)->step.id, kStep.id);
  EXPECT_EQ(pair.right.entry(1, kStep)->note, note);
  EXPECT_EQ(pair.right.entry(2, kStep), nullptr);
  EXPECT_EQ(pair.right.entry(1, {.generation = 3, .sequence = 9}), nullptr);
  pair.left.send_entry(1, {.generation = 2, .sequence = 10}, {});
  pair.advance_until_idle();
  EXPECT_NE(pair.right.entry(1, kStep), nullptr);
  pair.left.send_entry(1, {.generation = 3, .sequence = 9}, {});
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.entry(1, kStep), nullptr);
  EXPECT_NE(pair.right.entry(1, {.generation = 3, .sequence = 9}), nullptr);
}

// Cuts bytes into pieces of random sizes.
template <class Byte, class Visit>
void for_each_random_piece(std::mt19937& random, std::span<Byte> bytes, Visit visit) {
  while (!bytes.empty()) {
    const auto count = std::min<std::size_t>(1 + random() % 90'000, bytes.size());
    visit(bytes.first(count));
    bytes = bytes.subspan(count);
  }
}

// Several groups move data in both directions, in pieces of any size. A short frame is sent while
// the data moves.
TEST(PeerChannel, MovesTheDataOfSeveralGroups) {
  constexpr GroupId kGroups = 3;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    ChannelPair pair(seed, seed % 3 == 0 ? 7 : 100'000);
    pair.wire->unread_bytes_max = 200'000;
    std::vector<Bytes> sent;  // at index 2 × group + sending end
    std::vector<Bytes> received;
    for (GroupId stream = 0; stream < 2 * kGroups; ++stream) {
      sent.push_back(random_bytes(random, random() % (seed % 3 == 0 ? 2000 : 700'000)));
      received.emplace_back(sent.back().size());
    }
    PeerChannel* const ends[] = {&pair.left, &pair.right};
    for (GroupId stream = 0; stream < 2 * kGroups; ++stream) {
      const GroupId group = stream / 2;
      auto& from = *ends[stream % 2];
      auto& to = *ends[1 - stream % 2];
      if (&from == &pair.left) {
        from.begin(group, kStep);
        to.begin(group, kStep);
      }
      for_each_random_piece(random, std::span<const std::byte>(sent[stream]),
                            [&](auto piece) { from.send(group, piece); });
      for_each_random_piece(random, std::span<std::byte>(received[stream]),
                            [&](auto piece) { to.receive(group, piece); });
    }
    pair.left.send_message(1, Bytes(3));
    pair.advance_until_idle();
    EXPECT_EQ(received, sent) << seed;
    for (GroupId group = 0; group < kGroups; ++group) {
      EXPECT_EQ(pair.left.bytes_sent(group), sent[2 * group].size());
      EXPECT_EQ(pair.left.bytes_received(group), sent[2 * group + 1].size());
    }
    EXPECT_EQ(pair.right.next_message(1), Bytes(3));
  }
}

TEST(PeerChannel, DataWaitsForItsStepAndForMemory) {
  ChannelPair pair(3);
  const Bytes data(1000, std::byte{9});
  Bytes target(1000);
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  pair.left.send_message(1, Bytes(2));
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.next_message(1), Bytes(2));  // the early data does not delay the message
  pair.right.begin(0, kStep);
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.bytes_received(0), 0U);
  pair.right.receive(0, std::span(target).first(400));
  EXPECT_EQ(pair.right.bytes_received(0), 0U);  // the count grows only in advance()
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.bytes_received(0), 400U);
  pair.right.receive(0, std::span(target).subspan(400));
  pair.advance_until_idle();
  EXPECT_EQ(target, data);
  EXPECT_EQ(pair.right.bytes_received(0), 1000U);
}

// The left end sends the data of its step and then leaves before the right end begins the step.
void send_and_leave(ChannelPair& pair, const Bytes& data) {
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  pair.left.say_goodbye("it is done");
  pair.advance_until_idle();
  pair.wire->directions[0].ended = true;
  pair.advance_until_idle();
  ASSERT_TRUE(pair.right.is_over());
}

TEST(PeerChannel, DataOfAPeerThatHasLeftWaitsForItsStepToo) {
  ChannelPair pair(3);
  const Bytes data(1000, std::byte{9});
  Bytes target(1000);
  send_and_leave(pair, data);
  pair.right.begin(0, kStep);
  for (const std::size_t half : {0U, 500U}) {
    pair.right.receive(0, std::span(target).subspan(half, 500));
    ASSERT_TRUE(pair.right.advance().value());
    EXPECT_EQ(pair.right.bytes_received(0), half + 500);
  }
  EXPECT_FALSE(pair.right.advance().value());
  EXPECT_EQ(target, data);
}

TEST(PeerChannel, EarlyDataOfAnEndedGroupIsNotDelivered) {
  ChannelPair pair(3);
  const Bytes data(1000, std::byte{9});
  Bytes target(1000);
  send_and_leave(pair, data);
  pair.right.begin(0, kStep);
  pair.right.receive(0, target);
  EXPECT_TRUE(pair.right.end_group(0));
  EXPECT_FALSE(pair.right.advance().value());
  EXPECT_EQ(target, Bytes(1000));
}

TEST(PeerChannel, OnlyFramesThatHaveBegunAreNumbered) {
  ChannelPair pair(4);
  pair.wire->unread_bytes_max = 0;  // no bytes can be sent
  const Bytes data(1000);
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  for (int round = 0; round < 10; ++round) ASSERT_EQ(pair.left.advance().status(), Status());
  EXPECT_TRUE(pair.left.end_group(0));
  pair.left.send(Death{.rank = 1, .reason = std::string(2000, 'x')});
  pair.wire->unread_bytes_max = 100'000;
  pair.advance_until_idle();
  const auto death = pair.right.next_death();
  ASSERT_TRUE(death.has_value());
  EXPECT_EQ(death->reason.size(), kLeaveReasonBytesMax);  // the reason is cut to this length
}

TEST(PeerChannel, ShortFramesGoBeforeDataThatHasNotBegun) {
  ChannelPair pair(5);
  const Bytes data(100'000);
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  pair.left.send_entry(1, kStep, {});
  pair.advance_until_idle();
  EXPECT_NE(pair.right.entry(1, kStep), nullptr);
  EXPECT_EQ(pair.right.bytes_received(0), 0U);
}

TEST(PeerChannel, DataOfAnEndedGroupIsDropped) {
  ChannelPair pair(6);
  const Bytes data(50'000, std::byte{9});
  Bytes target(50'000);
  pair.left.begin(0, kStep);
  pair.right.begin(0, kStep);
  pair.right.receive(0, std::span(target).first(10));
  pair.left.send(0, data);
  pair.left.send_message(1, Bytes(4));
  EXPECT_TRUE(pair.right.end_group(0));
  pair.advance_until_idle();
  EXPECT_EQ(pair.left.bytes_sent(0), data.size());
  EXPECT_EQ(target, Bytes(50'000));
  EXPECT_EQ(pair.right.next_message(1), Bytes(4));
}

// The rest of a half-sent frame must still be sent. Without it, the peer would read the next frame
// as this rest. The peer must also receive the reason why the group has ended.
TEST(PeerChannel, TheRestOfAFrameOfAnEndedGroupIsSent) {
  ChannelPair pair(6, 100);
  Bytes data(200'000, std::byte{5});
  const Bytes sent = data;
  const Death death{.rank = 0, .reason = "it gave up"};
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  while (pair.left.bytes_sent(0) == 0) ASSERT_EQ(pair.left.advance().status(), Status());
  EXPECT_FALSE(pair.left.end_group(0));
  std::ranges::fill(data, std::byte{7});  // the memory was given back
  pair.left.send(death);
  Bytes target(data.size());
  pair.right.begin(0, kStep);
  pair.right.receive(0, target);
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.bytes_received(0), target.size());
  EXPECT_EQ(target, sent);
  EXPECT_EQ(pair.right.next_death(), death);
  pair.left.send_message(1, Bytes(4));
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.next_message(1), Bytes(4));
}

TEST(PeerChannel, AFrameOfAnEndedGroupThatHasNotBegunIsNotSent) {
  ChannelPair pair(6);
  const Bytes data(200'000);
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  EXPECT_TRUE(pair.left.end_group(0));
  pair.left.send_message(1, Bytes(4));
  Bytes target(data.size());
  pair.right.begin(0, kStep);
  pair.right.receive(0, target);
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.next_message(1), Bytes(4));
  EXPECT_EQ(pair.right.bytes_received(0), 0);
}

TEST(PeerChannel, ReportsEndsAndDeaths) {
  ChannelPair pair(8);
  const GroupEnd end{.group = 3, .completed = 12, .rank = 5, .reason = "it has finished"};
  const Death death{.rank = 4, .reason = "killed by signal 9"};
  pair.left.send(end);
  pair.left.send(death);
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.next_group_end(), end);
  EXPECT_EQ(pair.right.next_group_end(), std::nullopt);
  EXPECT_EQ(pair.right.next_death(), death);
  EXPECT_EQ(pair.right.next_death(), std::nullopt);
}

TEST(PeerChannel, EnvelopesTakeTurnsWithDataAndComeBeforeTheGoodbye) {
  ChannelPair pair(11);
  std::mt19937 random(1);
  const Bytes data = random_bytes(random, 2'000'000);
  Bytes target(data.size());
  for (auto* const end : {&pair.left, &pair.right}) end->begin(0, kStep);
  pair.right.receive(0, target);
  pair.left.send(0, data);
  std::vector<Bytes> sent;
  for (;;) {
    const Bytes first = random_bytes(random, 3);
    const Bytes second = random_bytes(random, 16'000);
    if (!pair.left.try_send_envelope(first, second)) break;
    sent.push_back(first);
    sent.back().insert(sent.back().end(), second.begin(), second.end());
  }
  EXPECT_EQ(sent.size(), 16U) << "further envelopes must wait";
  pair.left.say_goodbye("it is done");
  EXPECT_FALSE(pair.left.try_send_envelope({}, {}));
  std::vector<Bytes> received;
  std::uint64_t data_bytes_at_first_envelope = 0;
  std::uint64_t data_bytes_at_last_envelope = 0;
  while (!pair.right.peer_said_goodbye() || pair.right.has_envelope()) {
    ASSERT_EQ(pair.left.advance().status(), Status());
    ASSERT_EQ(pair.right.advance().status(), Status());
    while (auto envelope = pair.right.next_envelope()) {
      if (received.empty()) data_bytes_at_first_envelope = pair.right.bytes_received(0);
      received.push_back(*std::move(envelope));
      data_bytes_at_last_envelope = pair.right.bytes_received(0);
    }
    if (pair.right.peer_said_goodbye()) {
      EXPECT_EQ(received.size(), sent.size());
    }
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(pair.right.peer_goodbye(), "it is done");
  EXPECT_LT(data_bytes_at_first_envelope, data.size());
  EXPECT_GT(data_bytes_at_last_envelope, 0U);
  pair.advance_until_idle();
  EXPECT_EQ(target, data);
}

// Sends up to `count` envelopes of 16 KiB, until the other end stops receiving. The envelopes are
// numbered from `first`. Returns how many were sent.
std::uint32_t send_envelopes(ChannelPair& pair, std::uint32_t first, std::uint32_t count) {
  std::uint32_t sent = 0;
  std::uint32_t sent_before = 0;
  do {
    sent_before = sent;
    pair.advance_until_idle();
    const Bytes padding(16 * 1024);
    for (; sent < count; ++sent) {
      const std::uint32_t number = first + sent;
      if (!pair.left.try_send_envelope(std::as_bytes(std::span(&number, 1)), padding)) break;
    }
  } while (sent > sent_before);
  return sent;
}

TEST(PeerChannel, StopsReceivingWhileManyEnvelopesWait) {
  constexpr std::uint32_t kCount = 1000;
  ChannelPair pair(12, 30'000);
  std::uint32_t sent = 0;
  for (std::uint32_t received = 0; received < kCount;) {
    sent += send_envelopes(pair, sent, kCount - sent);
    EXPECT_EQ(pair.right.wants_to_receive(), kCount - received < 64);
    const std::uint32_t received_before = received;
    while (const auto envelope = pair.right.next_envelope()) {
      ByteReader reader(*envelope);
      ASSERT_EQ(reader.get<std::uint32_t>(), received++);
      EXPECT_TRUE(pair.right.wants_to_receive());
    }
    ASSERT_EQ(received - received_before, std::min(64U, kCount - received_before));
  }
  EXPECT_EQ(sent, kCount);
}

// A channel that keeps envelopes may have stopped receiving. So it awaits frames until the owner
// has taken all envelopes.
TEST(PeerChannel, AwaitsFramesWhileEnvelopesWait) {
  ChannelPair pair(12);
  EXPECT_TRUE(pair.left.try_send_envelope(Bytes(5), {}));
  pair.advance_until_idle();
  EXPECT_TRUE(pair.right.awaits_frames());
  EXPECT_EQ(pair.right.next_envelope(), Bytes(5));
  EXPECT_FALSE(pair.right.awaits_frames());
}

// If a rank stopped receiving after its goodbye, two ranks that leave could wait for each other for
// ever: each could not send its last envelopes, because the other does not receive.
TEST(PeerChannel, ReceivesAllEnvelopesAfterItsOwnGoodbye) {
  ChannelPair pair(12, 30'000);
  pair.right.say_goodbye("it is done");
  EXPECT_EQ(send_envelopes(pair, 0, 200), 200U);
  pair.left.say_goodbye("it is done, too");
  pair.advance_until_idle();
  EXPECT_TRUE(pair.right.peer_said_goodbye());
}

TEST(PeerChannel, AnEndWithoutAGoodbyeIsAnError) {
  for (const bool says_goodbye : {false, true}) {
    ChannelPair pair(9);
    if (says_goodbye) pair.left.say_goodbye("done");
    pair.left.send_message(0, Bytes(1));  // dropped after a goodbye
    pair.advance_until_idle();
    pair.wire->directions[0].ended = true;
    Status status;
    for (int round = 0; round < 50 && status.ok() && !pair.right.is_over(); ++round)
      status = pair.right.advance().status();
    EXPECT_EQ(status.ok(), says_goodbye);
    EXPECT_EQ(pair.right.peer_said_goodbye(), says_goodbye);
    EXPECT_EQ(pair.right.next_message(0).has_value(), !says_goodbye);
  }
}

Status error_of(const std::function<void(ChannelPair&)>& change) {
  ChannelPair pair(10);
  change(pair);
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(pair.left.advance().status(), Status());
    if (const auto status = pair.right.advance().status(); !status.ok()) return status;
  }
  return {};
}

// Puts an invalid frame on the wire, as if the left end had sent it.
void forge(ChannelPair& pair, const FrameHeader& header, const Bytes& payload) {
  auto& sent = pair.wire->directions[0].sent;
  const auto bytes = encode_frame_header(header);
  sent.insert(sent.end(), bytes.begin(), bytes.end());
  sent.insert(sent.end(), payload.begin(), payload.end());
}

TEST(PeerChannel, InvalidFramesAreErrors) {
  const auto error_of_forged = [](FrameHeader header, Bytes payload) {
    return error_of([&](ChannelPair& pair) {
      header.length = static_cast<std::uint32_t>(payload.size());
      forge(pair, header, payload);
    });
  };
  EXPECT_EQ(error_of_forged({.type = FrameType::kControl, .epoch = 6, .sequence = 1}, {}),
            Status::stop("a frame has epoch 6 and number 1 instead of 7 and 1"));
  EXPECT_EQ(error_of_forged({.type = FrameType::kControl, .epoch = 7, .sequence = 2}, {}),
            Status::stop("a frame has epoch 7 and number 2 instead of 7 and 1"));
  EXPECT_EQ(error_of_forged({.type = FrameType::kEnter, .epoch = 7, .sequence = 1}, Bytes(7)),
            Status::stop("an entry of a lane is too short"));
  EXPECT_EQ(error_of_forged({.type = FrameType::kGroupEnd, .epoch = 7, .sequence = 1}, Bytes(6)),
            Status::stop("the end of a group is too short"));
  EXPECT_EQ(error_of_forged({.type = FrameType::kDeath, .epoch = 7, .sequence = 1}, Bytes(3)),
            Status::stop("the report of a death is too short"));
  EXPECT_EQ(error_of_forged({.type = FrameType::kGoodbye, .epoch = 7, .sequence = 1}, Bytes(3)),
            Status::stop("a goodbye is too short"));
  EXPECT_EQ(error_of_forged({.type = FrameType::kStore, .epoch = 7, .sequence = 1}, Bytes(3)),
            Status::stop("a rank has sent a frame of the Store"));
  EXPECT_EQ(error_of([](ChannelPair& pair) {
              pair.right.begin(0, kStep);
              forge(pair,
                    {.type = FrameType::kData,
                     .epoch = 7,
                     .generation = 2,
                     .step = 8,
                     .sequence = 1,
                     .length = 1},
                    Bytes(1));
            }),
            Status::stop("data of step 8 of generation 2 arrived in step 9 of generation 2"));
  EXPECT_EQ(error_of([](ChannelPair& pair) {
              for (const std::uint32_t number : {1U, 2U})
                forge(pair,
                      {.type = FrameType::kData,
                       .epoch = 7,
                       .generation = 2,
                       .step = 8 + number,
                       .sequence = number,
                       .length = 1},
                      Bytes(1));
            }),
            Status::stop("data of two steps arrived before the first of them had begun"));
}

// If data flows one way, as in a broadcast, the sender may be far ahead of a slow receiver.
TEST(PeerChannel, StopsReceivingIfThereIsTooMuchEarlyData) {
  std::mt19937 random(1);
  ChannelPair pair(11, 100'000);
  const Bytes data = random_bytes(random, std::size_t{9} << 20);
  Bytes target(data.size());
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  pair.left.send_message(1, Bytes(5));
  pair.advance_until_idle();
  EXPECT_LT(pair.left.bytes_sent(0), data.size());
  EXPECT_FALSE(pair.right.wants_to_receive());
  pair.right.begin(0, kStep);
  std::size_t wanted_bytes = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{3} << 20, std::size_t{1} << 20}) {
    pair.right.receive(0, std::span(target).subspan(wanted_bytes, bytes));
    wanted_bytes += bytes;
    pair.advance_until_idle();
    EXPECT_EQ(pair.right.bytes_received(0), wanted_bytes);
    EXPECT_GE(pair.left.bytes_sent(0), std::min(wanted_bytes + (std::size_t{4} << 20), data.size()))
        << "only bytes that the step has not taken count toward the limit";
  }
  pair.right.receive(0, std::span(target).subspan(wanted_bytes));
  pair.advance_until_idle();
  EXPECT_EQ(target, data);
  EXPECT_TRUE(pair.right.wants_to_receive());
  EXPECT_EQ(pair.right.next_message(1), Bytes(5));
}

// If early data blocked the channel in this case, the steps of two groups could wait for each other
// for ever on two channels.
TEST(PeerChannel, AwaitedDataIsNotBlockedByEarlyDataOfAnotherGroup) {
  std::mt19937 random(1);
  ChannelPair pair(11, 100'000);
  const Bytes early_data = random_bytes(random, std::size_t{9} << 20);
  const Bytes data(1000, std::byte{3});
  Bytes early_target(early_data.size());
  Bytes target(data.size());
  pair.right.begin(1, kStep);
  pair.right.receive(1, target);
  pair.left.begin(0, kStep);
  pair.left.send(0, early_data);
  pair.advance_until_idle();
  pair.left.begin(1, kStep);
  pair.left.send(1, data);
  pair.advance_until_idle();
  EXPECT_EQ(target, data);
  pair.right.begin(0, kStep);
  for_each_random_piece(random, std::span(early_target), [&](auto piece) {
    pair.right.receive(0, piece);
    ASSERT_EQ(pair.right.advance().status(), Status());
  });
  EXPECT_EQ(early_target, early_data);
}

TEST(PeerChannel, AnEndedGroupDoesNotStopReceiving) {
  ChannelPair pair(11, 100'000);
  const Bytes data(std::size_t{9} << 20);
  pair.left.begin(0, kStep);
  pair.left.send(0, data);
  pair.advance_until_idle();
  ASSERT_FALSE(pair.right.wants_to_receive());
  EXPECT_TRUE(pair.right.end_group(0));
  EXPECT_TRUE(pair.right.wants_to_receive());
  pair.left.send_message(1, Bytes(5));
  pair.advance_until_idle();
  EXPECT_EQ(pair.right.next_message(1), Bytes(5));
}

}  // namespace
}  // namespace farandole
