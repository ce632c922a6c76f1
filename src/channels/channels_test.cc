#include "channels/channels.h"

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>
#include <semaphore>
#include <thread>

#include "base/no_descriptors_in_test.h"
#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kSize = 2;
constexpr std::chrono::seconds kTestTimeout(60);

// One rank that is alone on its host.
class Rank {
 public:
  Rank(const TlsContext& context, int rank)
      : doorbells_(memory_.data(), rank, kSize), options_{.rank = rank, .job = 7, .epoch = 3} {
    options_.addresses_of = [this](int peer) { return peer_addresses_[peer]; };
    ListenOptions listen{
        .addresses = {address_of("127.0.0.1:0")},
        .acceptance = {
            .job = 7, .epoch = 3, .self = {Role::kWorker, static_cast<std::uint32_t>(rank)}}};
    auto listener = TcpListener::open(context, listen);
    EXPECT_EQ(listener.status(), Status());
    addresses_ = (*listener)->addresses();
    channels_.emplace(context, *std::move(listener), doorbells_, options_);
    EXPECT_EQ(channels_->start(), Status());
  }

  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  Channels& channels() { return *channels_; }
  PeerChannel& channel_for_lane(int rank, const std::vector<SocketAddress>& addresses) {
    peer_addresses_[rank] = addresses;
    return channels_->channel_for_lane(rank, std::chrono::steady_clock::now());
  }
  PeerChannel& channel_for_messages(int rank, const std::vector<SocketAddress>& addresses) {
    peer_addresses_[rank] = addresses;
    return channels_->channel_for_messages(rank, std::chrono::steady_clock::now());
  }
  // Sets the addresses of a rank that this rank may have to dial.
  void set_addresses(int rank, const std::vector<SocketAddress>& addresses) {
    peer_addresses_[rank] = addresses;
  }
  Doorbells& doorbells() { return doorbells_; }
  void destroy_channels() { channels_.reset(); }

  // Calls advance() until `done` returns true, and sleeps in between as the engine does.
  void drive_until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      if (channels_->advance()) continue;
      const auto ticket = doorbells_.prepare_sleep();
      if (channels_->advance() || done()) {
        doorbells_.cancel_sleep();
        continue;
      }
      channels_->ring_on_arrival();
      const auto wake_time = std::min(channels_->deadline(), deadline);
      doorbells_.sleep(ticket, wake_time - std::chrono::steady_clock::now());
    }
  }

 private:
  alignas(kFlagLineBytes) std::array<std::byte, 4096> memory_{};
  Doorbells doorbells_;
  Channels::Options options_{};
  std::vector<SocketAddress> addresses_;
  std::map<int, std::vector<SocketAddress>> peer_addresses_;  // by rank
  std::optional<Channels> channels_;
};

// Returns the addresses of a rank that has ended. No process listens there any more.
std::vector<SocketAddress> unused_addresses(const TlsContext& context) {
  return Rank(context, 1).addresses();
}

// The two ranks send each other many messages, one after another, so that both ranks often sleep.
TEST(Channels, ASleepingRankWakesForItsSockets) {
  constexpr int kRounds = 200;
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  std::jthread peer_thread([&] {
    auto& channel = rank_1.channel_for_lane(0, rank_0.addresses());
    for (int round = 0; round < kRounds; ++round) {
      std::optional<Bytes> message;
      rank_1.drive_until([&] { return (message = channel.next_message(0)).has_value(); });
      channel.send_message(0, *message);
    }
    channel.say_goodbye("");
    rank_1.channels().stop(kTestTimeout);
  });
  auto& channel = rank_0.channel_for_lane(1, rank_1.addresses());
  for (int round = 0; round < kRounds; ++round) {
    const Bytes sent = random_bytes(static_cast<std::size_t>(round), 5);
    channel.send_message(0, sent);
    std::optional<Bytes> message;
    rank_0.drive_until([&] { return (message = channel.next_message(0)).has_value(); });
    EXPECT_EQ(message, sent);
  }
  channel.say_goodbye("");
  rank_0.channels().stop(kTestTimeout);
  EXPECT_THAT(rank_0.channels().take_failures(), IsEmpty());
}

TEST(Channels, MovesDataBothWays) {
  constexpr StepIdentity kStep{.generation = 1, .sequence = 1};
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  const Bytes data[] = {random_bytes(10'000'000, 1), random_bytes(9'000'001, 2)};
  Bytes target[] = {Bytes(data[1].size()), Bytes(data[0].size())};
  const auto exchange = [&](Rank& self, Rank& peer, std::size_t number) {
    auto& channel = self.channel_for_lane(static_cast<int>(1 - number), peer.addresses());
    channel.begin(0, kStep);
    channel.send(0, data[number]);
    channel.receive(0, target[number]);
    self.drive_until([&] {
      return channel.bytes_sent(0) == data[number].size() &&
             channel.bytes_received(0) == target[number].size();
    });
    channel.say_goodbye("");
    self.channels().stop(kTestTimeout);
  };
  {
    std::jthread peer_thread([&] { exchange(rank_1, rank_0, 1); });
    exchange(rank_0, rank_1, 0);
  }
  EXPECT_EQ(target[0], data[1]);
  EXPECT_EQ(target[1], data[0]);
}

TEST(Channels, APeerThatEndsWithoutAGoodbyeIsAFailure) {
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  auto& channel = rank_0.channel_for_lane(1, rank_1.addresses());
  auto& second_channel = rank_1.channel_for_lane(0, rank_0.addresses());
  channel.send_message(0, Bytes(1));
  {
    std::jthread peer_thread([&] {
      rank_1.drive_until([&] { return second_channel.next_message(0).has_value(); });
      rank_1.destroy_channels();
    });
    std::vector<Channels::Failure> failures;
    rank_0.drive_until([&] { return !(failures = rank_0.channels().take_failures()).empty(); });
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures.front().rank, 1);
    EXPECT_THAT(failures.front().text, HasSubstr("127.0.0.1"));
  }
  rank_0.channels().for_each([](int, PeerChannel& failed) { EXPECT_TRUE(failed.is_over()); });
}

TEST(Channels, ARankThatCannotBeReachedIsAFailure) {
  const auto context = context_of('a');
  const auto dead_addresses = unused_addresses(*context);
  Rank rank_0(*context, 0);
  rank_0.channel_for_lane(1, dead_addresses);
  std::vector<Channels::Failure> failures;
  rank_0.drive_until([&] { return !(failures = rank_0.channels().take_failures()).empty(); });
  EXPECT_THAT(failures.front().text, HasSubstr(dead_addresses.front().text()));
}

TEST(Channels, ARankDialsBackAfterAKnock) {
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  rank_0.set_addresses(1, rank_1.addresses());
  std::counting_semaphore<> knocked(0);
  rank_0.channels().watch_traffic([&] { knocked.release(); });
  const Bytes envelope = random_bytes(100, 1);
  std::jthread peer_thread([&] {
    auto& channel = rank_1.channel_for_messages(0, rank_0.addresses());
    EXPECT_TRUE(channel.try_send_envelope(envelope, {}));
    EXPECT_TRUE(rank_1.channels().has_work());
    channel.say_goodbye("done");
    rank_1.channels().stop(kTestTimeout);
    EXPECT_FALSE(channel.wants_to_send());
  });
  ASSERT_TRUE(knocked.try_acquire_for(kTestTimeout));
  rank_0.channels().request_accept_and_receive_all();
  EXPECT_TRUE(rank_0.channels().has_work());
  PeerChannel* channel = nullptr;
  rank_0.drive_until([&] {
    rank_0.channels().for_each([&](int, PeerChannel& each) { channel = &each; });
    return channel != nullptr && channel->has_envelope();
  });
  EXPECT_EQ(channel->next_envelope(), envelope);
  rank_0.drive_until([&] { return channel->peer_said_goodbye() && !rank_0.channels().has_work(); });
  EXPECT_EQ(&rank_0.channel_for_messages(1, rank_1.addresses()), channel);
}

// A rank whose program computes does not call advance(). Data that has arrived must not wait in the
// kernel for long.
TEST(Channels, AnIdleRankIsAskedToReceive) {
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  std::counting_semaphore<> traffic(0);
  rank_1.channels().watch_traffic([&] { traffic.release(); });
  std::jthread peer_thread([&] {
    auto& channel = rank_0.channel_for_lane(1, rank_1.addresses());
    for (std::size_t bytes = 1; bytes <= 3; ++bytes) {
      channel.send_message(0, Bytes(bytes));
      std::optional<Bytes> answer;
      rank_0.drive_until([&] { return answer || (answer = channel.next_message(0)); });
    }
  });
  auto& channel = rank_1.channel_for_lane(0, rank_0.addresses());
  std::optional<Bytes> first_message;
  rank_1.drive_until([&] { return first_message || (first_message = channel.next_message(0)); });
  for (std::size_t bytes = 2; bytes <= 3; ++bytes) {
    channel.send_message(0, Bytes(1));
    while (rank_1.channels().send()) continue;
    std::optional<Bytes> message;
    while (!message) {
      ASSERT_TRUE(traffic.try_acquire_for(kTestTimeout));
      rank_1.channels().request_accept_and_receive_all();
      while (rank_1.channels().advance()) continue;
      rank_1.channels().ring_on_arrival();
      message = channel.next_message(0);
    }
    EXPECT_EQ(*message, Bytes(bytes));
  }
  channel.send_message(0, Bytes(1));
  while (rank_1.channels().send()) continue;
}

// While the network thread reports traffic, the owner's thread may check for traffic, find none and
// go to sleep. So the bell must ring after the report.
TEST(Channels, TheBellRingsAfterTheReport) {
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  std::uint32_t ticket = 0;
  std::counting_semaphore<> reported(0);
  rank_0.channels().watch_traffic([&] {
    ticket = rank_0.doorbells().prepare_sleep();
    reported.release();
  });
  rank_1.channel_for_messages(0, rank_0.addresses());
  rank_1.channels().advance();
  ASSERT_TRUE(reported.try_acquire_for(kTestTimeout));
  const std::uint32_t old_ticket = ticket;
  rank_0.doorbells().sleep(old_ticket, kTestTimeout);
  EXPECT_NE(rank_0.doorbells().prepare_sleep(), old_ticket) << "nobody has rung";
}

// Rank 1 has given up rank 0. Then rank 0 connects to rank 1, which drops the connection.
TEST(Channels, AConnectionThatThePeerDropsAtOnceFailsOnlyMessages) {
  const auto context = context_of('a');
  const auto dead_addresses = unused_addresses(*context);
  Rank rank_0(*context, 0);
  Rank rank_1(*context, 1);
  rank_1.channel_for_messages(0, dead_addresses);
  rank_1.drive_until([&] { return !rank_1.channels().take_failures().empty(); });
  std::atomic<bool> done = false;
  std::counting_semaphore<> knocked(0);
  rank_1.channels().watch_traffic([&] { knocked.release(); });
  std::jthread peer_thread([&] {
    ASSERT_TRUE(knocked.try_acquire_for(kTestTimeout));
    rank_1.channels().request_accept_and_receive_all();
    while (!done)
      if (!rank_1.channels().advance()) std::this_thread::yield();
  });
  EXPECT_TRUE(rank_0.channel_for_messages(1, rank_1.addresses()).try_send_envelope({}, {}));
  std::vector<Channels::Failure> failures;
  rank_0.drive_until([&] { return !(failures = rank_0.channels().take_failures()).empty(); });
  done = true;
  EXPECT_EQ(failures.front().rank, 1);
  EXPECT_TRUE(failures.front().peer_may_live);
}

TEST(Channels, ConnectionsOfStrangersAreClosed) {
  const auto context = context_of('a');
  Rank rank_0(*context, 0);
  std::counting_semaphore<> knocked(0);
  rank_0.channels().watch_traffic([&] { knocked.release(); });
  for (int stranger = 0; stranger < 2; ++stranger) {
    {
      const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto address = kernel_address_of(rank_0.addresses().front());
      ASSERT_EQ(::connect(socket.get(), address.get(), address.bytes), 0);
      ASSERT_TRUE(knocked.try_acquire_for(kTestTimeout));
      rank_0.channels().request_accept_and_receive_all();
      ASSERT_GT(::send(socket.get(), "GET /", 5, MSG_NOSIGNAL), 0);
    }
    rank_0.drive_until([&] { return !rank_0.channels().has_work(); });
  }
  rank_0.channels().for_each([](int, PeerChannel&) {
    ADD_FAILURE() << "a process that does not belong to the job has a channel";
  });
}

TEST(Channels, ARankThatCannotBeReachedForMessagesFailsOnlyThese) {
  const auto context = context_of('a');
  const auto dead_addresses = unused_addresses(*context);
  for (const int peer : {0, 2}) {
    Rank self(*context, 1);
    auto& channel = self.channel_for_messages(peer, dead_addresses);
    EXPECT_TRUE(channel.try_send_envelope({}, {}));
    std::vector<Channels::Failure> failures;
    self.drive_until([&] { return !(failures = self.channels().take_failures()).empty(); });
    EXPECT_EQ(failures.front().rank, peer);
    EXPECT_TRUE(failures.front().peer_may_live);
    EXPECT_THAT(failures.front().text, HasSubstr(dead_addresses.front().text()));
    EXPECT_FALSE(self.channels().has_work());
    self.channel_for_lane(peer, dead_addresses);
    failures = self.channels().take_failures();
    ASSERT_EQ(failures.size(), 1U) << "a lane cannot use this channel";
    EXPECT_FALSE(failures.front().peer_may_live);
  }
}

TEST(Channels, ARankWithAnotherSecretIsNotLetIn) {
  const auto context = context_of('a');
  const auto other_context = context_of('b');
  Rank rank_0(*other_context, 0);
  Rank rank_1(*context, 1);
  rank_1.channel_for_lane(0, rank_0.addresses());
  rank_0.channel_for_lane(1, rank_1.addresses());
  std::jthread peer_thread([&](std::stop_token stop) {
    while (!stop.stop_requested()) rank_1.channels().advance();
  });
  std::vector<Channels::Failure> failures;
  rank_0.drive_until([&] { return !(failures = rank_0.channels().take_failures()).empty(); });
  EXPECT_EQ(failures.front().rank, 1);
}

TEST(Channels, ARankThatCannotBeReachedEndsTheWait) {
  const auto context = context_of('a');
  Rank rank_1(*context, 1);
  rank_1.channel_for_lane(0, {});  // rank 0 must dial, but does not
  rank_1.channel_for_lane(2, {});
  EXPECT_EQ(rank_1.channels().wait_until_connected({}),
            Status::rebuild_group("rank 1 cannot connect to rank 2: worker 2 offers no address to "
                                  "connect to"));
}

TEST(Channels, AnInterruptionEndsTheWait) {
  const auto context = context_of('a');
  Rank rank_1(*context, 1);
  rank_1.channel_for_lane(0, {});  // rank 0 must dial, but does not
  int interrupt_checks = 0;
  EXPECT_EQ(rank_1.channels().wait_until_connected([&] { return ++interrupt_checks == 2; }),
            Status::retry("interrupted"));
  EXPECT_EQ(interrupt_checks, 2);
}

TEST(Channels, NeedTwoDescriptors) {
  const auto context = context_of('a');
  alignas(kFlagLineBytes) std::array<std::byte, 4096> memory{};
  Doorbells doorbells(memory.data(), 0, kSize);
  const auto start = [&] { return Channels(*context, nullptr, doorbells, {}).start(); };
  Descriptor spare(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_EQ(start(),
            Status::stop("cannot make an eventfd (Too many open files); raise `ulimit -n`"));
  spare.reset();
  EXPECT_EQ(start(), Status::stop("cannot make an epoll (Too many open files); raise `ulimit -n`"));
}

}  // namespace
}  // namespace farandole
