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
    options_.addresses_of = [this](int other) { return peer_addresses_[other]; };
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

// Sends a message there and back, many times, so that both ranks often sleep.
TEST(Channels, ASleepingRankWakesForItsSockets) {
  constexpr int kRounds = 200;
  const auto context = context_of('a');
  Rank first(*context, 0);
  Rank second(*context, 1);
  std::jthread other([&] {
    auto& channel = second.channel_for_lane(0, first.addresses());
    for (int round = 0; round < kRounds; ++round) {
      std::optional<Bytes> message;
      second.drive_until([&] { return (message = channel.next_message(0)).has_value(); });
      channel.send_message(0, *message);
    }
    channel.say_goodbye("");
    second.channels().stop(kTestTimeout);
  });
  auto& channel = first.channel_for_lane(1, second.addresses());
  for (int round = 0; round < kRounds; ++round) {
    const Bytes sent = random_bytes(static_cast<std::size_t>(round), 5);
    channel.send_message(0, sent);
    std::optional<Bytes> message;
    first.drive_until([&] { return (message = channel.next_message(0)).has_value(); });
    EXPECT_EQ(message, sent);
  }
  channel.say_goodbye("");
  first.channels().stop(kTestTimeout);
  EXPECT_THAT(first.channels().take_failures(), IsEmpty());
}

TEST(Channels, MovesDataBothWays) {
  constexpr StepIdentity kStep{.generation = 1, .sequence = 1};
  const auto context = context_of('a');
  Rank first(*context, 0);
  Rank second(*context, 1);
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
    std::jthread other([&] { exchange(second, first, 1); });
    exchange(first, second, 0);
  }
  EXPECT_EQ(target[0], data[1]);
  EXPECT_EQ(target[1], data[0]);
}

TEST(Channels, APeerThatEndsWithoutAGoodbyeIsAFailure) {
  const auto context = context_of('a');
  Rank first(*context, 0);
  Rank second(*context, 1);
  auto& channel = first.channel_for_lane(1, second.addresses());
  auto& second_channel = second.channel_for_lane(0, first.addresses());
  channel.send_message(0, Bytes(1));
  {
    std::jthread other([&] {
      second.drive_until([&] { return second_channel.next_message(0).has_value(); });
      second.destroy_channels();
    });
    std::vector<Channels::Failure> failures;
    first.drive_until([&] { return !(failures = first.channels().take_failures()).empty(); });
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures.front().rank, 1);
    EXPECT_THAT(failures.front().text, HasSubstr("127.0.0.1"));
  }
  first.channels().for_each([](int, PeerChannel& failed) { EXPECT_TRUE(failed.is_over()); });
}

TEST(Channels, ARankThatCannotBeReachedIsAFailure) {
  const auto context = context_of('a');
  const auto unused = unused_addresses(*context);
  Rank first(*context, 0);
  first.channel_for_lane(1, unused);
  std::vector<Channels::Failure> failures;
  first.drive_until([&] { return !(failures = first.channels().take_failures()).empty(); });
  EXPECT_THAT(failures.front().text, HasSubstr(unused.front().text()));
}

TEST(Channels, ARankDialsBackAfterAKnock) {
  const auto context = context_of('a');
  Rank first(*context, 0);
  Rank second(*context, 1);
  first.set_addresses(1, second.addresses());
  std::counting_semaphore<> knocked(0);
  first.channels().watch_traffic([&] { knocked.release(); });
  const Bytes envelope = random_bytes(100, 1);
  std::jthread other([&] {
    auto& channel = second.channel_for_messages(0, first.addresses());
    EXPECT_TRUE(channel.try_send_envelope(envelope, {}));
    EXPECT_TRUE(second.channels().has_work());
    channel.say_goodbye("done");
    second.channels().stop(kTestTimeout);
    EXPECT_FALSE(channel.wants_to_send());
  });
  ASSERT_TRUE(knocked.try_acquire_for(kTestTimeout));
  first.channels().accept_and_receive_all();
  EXPECT_TRUE(first.channels().has_work());
  PeerChannel* channel = nullptr;
  first.drive_until([&] {
    first.channels().for_each([&](int, PeerChannel& each) { channel = &each; });
    return channel != nullptr && channel->has_envelope();
  });
  EXPECT_EQ(channel->next_envelope(), envelope);
  first.drive_until([&] { return channel->peer_said_goodbye() && !first.channels().has_work(); });
  EXPECT_EQ(&first.channel_for_messages(1, second.addresses()), channel);
}

// A rank whose program computes does not call advance(). Data that has arrived must not wait in the
// kernel for long.
TEST(Channels, AnIdleRankIsAskedToReceive) {
  const auto context = context_of('a');
  Rank first(*context, 0);
  Rank second(*context, 1);
  std::counting_semaphore<> traffic(0);
  second.channels().watch_traffic([&] { traffic.release(); });
  std::jthread other([&] {
    auto& channel = first.channel_for_lane(1, second.addresses());
    for (std::size_t bytes = 1; bytes <= 3; ++bytes) {
      channel.send_message(0, Bytes(bytes));
      std::optional<Bytes> answer;
      first.drive_until([&] { return answer || (answer = channel.next_message(0)); });
    }
  });
  auto& channel = second.channel_for_lane(0, first.addresses());
  std::optional<Bytes> first_message;
  second.drive_until([&] { return first_message || (first_message = channel.next_message(0)); });
  for (std::size_t bytes = 2; bytes <= 3; ++bytes) {
    channel.send_message(0, Bytes(1));
    while (second.channels().send()) continue;
    std::optional<Bytes> message;
    while (!message) {
      ASSERT_TRUE(traffic.try_acquire_for(kTestTimeout));
      second.channels().accept_and_receive_all();
      while (second.channels().advance()) continue;
      second.channels().ring_on_arrival();
      message = channel.next_message(0);
    }
    EXPECT_EQ(*message, Bytes(bytes));
  }
  channel.send_message(0, Bytes(1));
  while (second.channels().send()) continue;
}

// While the network thread reports traffic, the owner's thread may check for traffic, find none and
// go to sleep. So the bell must ring after the report.
TEST(Channels, TheBellRingsAfterTheReport) {
  const auto context = context_of('a');
  Rank first(*context, 0);
  Rank second(*context, 1);
  std::uint32_t ticket = 0;
  std::counting_semaphore<> reported(0);
  first.channels().watch_traffic([&] {
    ticket = first.doorbells().prepare_sleep();
    reported.release();
  });
  second.channel_for_messages(0, first.addresses());
  second.channels().advance();
  ASSERT_TRUE(reported.try_acquire_for(kTestTimeout));
  const std::uint32_t old_ticket = ticket;
  first.doorbells().sleep(old_ticket, kTestTimeout);
  EXPECT_NE(first.doorbells().prepare_sleep(), old_ticket) << "nobody has rung";
}

// Rank 1 has given up rank 0. Then rank 0 connects to rank 1, which drops the connection.
TEST(Channels, AConnectionThatThePeerDropsAtOnceFailsOnlyMessages) {
  const auto context = context_of('a');
  const auto unused = unused_addresses(*context);
  Rank first(*context, 0);
  Rank second(*context, 1);
  second.channel_for_messages(0, unused);
  second.drive_until([&] { return !second.channels().take_failures().empty(); });
  std::atomic<bool> done = false;
  std::counting_semaphore<> knocked(0);
  second.channels().watch_traffic([&] { knocked.release(); });
  std::jthread other([&] {
    ASSERT_TRUE(knocked.try_acquire_for(kTestTimeout));
    second.channels().accept_and_receive_all();
    while (!done)
      if (!second.channels().advance()) std::this_thread::yield();
  });
  EXPECT_TRUE(first.channel_for_messages(1, second.addresses()).try_send_envelope({}, {}));
  std::vector<Channels::Failure> failures;
  first.drive_until([&] { return !(failures = first.channels().take_failures()).empty(); });
  done = true;
  EXPECT_EQ(failures.front().rank, 1);
  EXPECT_TRUE(failures.front().peer_may_live);
}

TEST(Channels, ConnectionsOfStrangersAreClosed) {
  const auto context = context_of('a');
  Rank first(*context, 0);
  std::counting_semaphore<> knocked(0);
  first.channels().watch_traffic([&] { knocked.release(); });
  for (int stranger = 0; stranger < 2; ++stranger) {
    {
      const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto address = kernel_address_of(first.addresses().front());
      ASSERT_EQ(::connect(socket.get(), address.get(), address.bytes), 0);
      ASSERT_TRUE(knocked.try_acquire_for(kTestTimeout));
      first.channels().accept_and_receive_all();
      ASSERT_GT(::send(socket.get(), "GET /", 5, MSG_NOSIGNAL), 0);
    }
    first.drive_until([&] { return !first.channels().has_work(); });
  }
  first.channels().for_each([](int, PeerChannel&) {
    ADD_FAILURE() << "a process that does not belong to the job has a channel";
  });
}

TEST(Channels, ARankThatCannotBeReachedForMessagesFailsOnlyThese) {
  const auto context = context_of('a');
  const auto unused = unused_addresses(*context);
  for (const int peer : {0, 2}) {
    Rank self(*context, 1);
    auto& channel = self.channel_for_messages(peer, unused);
    EXPECT_TRUE(channel.try_send_envelope({}, {}));
    std::vector<Channels::Failure> failures;
    self.drive_until([&] { return !(failures = self.channels().take_failures()).empty(); });
    EXPECT_EQ(failures.front().rank, peer);
    EXPECT_TRUE(failures.front().peer_may_live);
    EXPECT_THAT(failures.front().text, HasSubstr(unused.front().text()));
    EXPECT_FALSE(self.channels().has_work());
    self.channel_for_lane(peer, unused);
    failures = self.channels().take_failures();
    ASSERT_EQ(failures.size(), 1U) << "a lane cannot use this channel";
    EXPECT_FALSE(failures.front().peer_may_live);
  }
}

TEST(Channels, ARankWithAnotherSecretIsNotLetIn) {
  const auto context = context_of('a');
  const auto other_context = context_of('b');
  Rank first(*other_context, 0);
  Rank second(*context, 1);
  second.channel_for_lane(0, first.addresses());
  first.channel_for_lane(1, second.addresses());
  std::jthread other([&](std::stop_token stop) {
    while (!stop.stop_requested()) second.channels().advance();
  });
  std::vector<Channels::Failure> failures;
  first.drive_until([&] { return !(failures = first.channels().take_failures()).empty(); });
  EXPECT_EQ(failures.front().rank, 1);
}

TEST(Channels, ARankThatCannotBeReachedEndsTheWait) {
  const auto context = context_of('a');
  Rank second(*context, 1);
  second.channel_for_lane(0, {});  // rank 0 would have to dial
  second.channel_for_lane(2, {});
  EXPECT_EQ(second.channels().wait_until_connected({}),
            Status::rebuild_group("rank 1 cannot connect to rank 2: worker 2 offers no address to "
                                  "connect to"));
}

TEST(Channels, AnInterruptionEndsTheWait) {
  const auto context = context_of('a');
  Rank second(*context, 1);
  second.channel_for_lane(0, {});  // rank 0 would have to dial
  int interrupt_checks = 0;
  EXPECT_EQ(second.channels().wait_until_connected([&] { return ++interrupt_checks == 2; }),
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
