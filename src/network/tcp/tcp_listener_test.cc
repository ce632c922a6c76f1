#include "network/tcp/tcp_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/no_descriptors_in_test.h"
#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

struct ListeningJob {
  explicit ListeningJob(const std::vector<std::string>& addresses = {"127.0.0.1:0"}) {
    for (const std::string& address : addresses) options.addresses.push_back(address_of(address));
    options.acceptance = test_acceptance();
  }
  void open() {
    auto opened = TcpListener::open(*context, options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    listener = *std::move(opened);
  }

  std::unique_ptr<TlsContext> context = context_of('s');
  ListenOptions options;
  std::unique_ptr<TcpListener> listener;
};

// The two ends of a connection that join() makes. Both are null after an error of the dialing end.
struct MemberPair {
  std::unique_ptr<TlsSession> dialing_end;
  std::unique_ptr<Connection> accepted_connection;
  Status error;
};

MemberPair join(TcpListener& listener, const TlsContext& context,
                const SocketAddress& listen_address, const Link& link = test_link()) {
  MemberPair pair;
  auto wire = TcpConnection::dial(listen_address, {}, {});
  EXPECT_TRUE(wire.ok()) << wire.status().message();
  pair.dialing_end = TlsSession::dial(context, *std::move(wire), link);
  const TimePoint limit = test_deadline();
  for (bool done = false;
       !(done && pair.accepted_connection) && std::chrono::steady_clock::now() < limit;) {
    const auto progress = pair.dialing_end->try_handshake();
    if (!progress.ok()) return {nullptr, nullptr, progress.status()};
    done = *progress == TlsSession::Progress::kDone;
    auto accepted = listener.try_accept(std::chrono::steady_clock::now());
    EXPECT_TRUE(accepted.ok()) << accepted.status().message();
    if (*accepted) pair.accepted_connection = *std::move(accepted);
    if (!(done && pair.accepted_connection))
      sleep_for({listener.descriptor(), pair.dialing_end->descriptor()},
                std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  }
  return pair;
}

// Connects as a stranger that sends this text and never receives.
Descriptor connect_stranger(const SocketAddress& listen_address, const std::string& text = "",
                            const char* local_address = nullptr) {
  const KernelAddress kernel = kernel_address_of(listen_address);
  Descriptor socket(::socket(kernel.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (local_address != nullptr) {
    const KernelAddress local = kernel_address_of(address_of(local_address));
    EXPECT_EQ(::bind(socket.get(), local.get(), local.bytes), 0);
  }
  EXPECT_EQ(::connect(socket.get(), kernel.get(), kernel.bytes), 0);
  EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
  return socket;
}

// Calls try_accept() until the condition holds.
template <class Condition>
void accept_until(TcpListener& listener, Condition holds) {
  const TimePoint limit = test_deadline();
  while (!holds() && std::chrono::steady_clock::now() < limit) {
    const auto accepted = listener.try_accept(std::chrono::steady_clock::now());
    ASSERT_TRUE(accepted.ok()) << accepted.status().message();
    EXPECT_EQ(*accepted, nullptr);
    if (!holds())
      sleep_for({listener.descriptor()},
                std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(holds());
}

TEST(TcpListener, AcceptsMembersOnAllItsAddresses) {
  ListeningJob job({"127.0.0.1:0", "[::1]:0", "127.0.0.2:0"});
  job.open();
  ASSERT_EQ(job.listener->addresses().size(), 3u);
  for (const SocketAddress& listen_address : job.listener->addresses()) {
    EXPECT_EQ(listen_address.port, job.listener->addresses()[0].port);
    EXPECT_NE(listen_address.port, 0);
    auto pair = join(*job.listener, *job.context, listen_address);
    ASSERT_TRUE(pair.accepted_connection) << pair.error.message();
    EXPECT_EQ(pair.accepted_connection->peer().party, (Party{Role::kWorker, 1}));
    EXPECT_EQ(pair.accepted_connection->peer().epoch, 3u);
    const Bytes payload = random_bytes(2'000'000, 1);
    EXPECT_EQ(transfer(*pair.dialing_end, *pair.accepted_connection, payload), payload);
    EXPECT_EQ(transfer(*pair.accepted_connection, *pair.dialing_end, payload), payload);
  }
  EXPECT_EQ(job.listener->counts().accepted, 3u);
  EXPECT_EQ(job.listener->next_deadline(), TimePoint::max());
}

TEST(TcpListener, RefusesOtherSecretsAndLinks) {
  ListeningJob job;
  job.open();
  const auto other_context = context_of('t');
  const SocketAddress listen_address = job.listener->addresses()[0];
  EXPECT_FALSE(join(*job.listener, *other_context, listen_address).error.ok());
  Link old_link = test_link();
  old_link.epoch = 2;
  EXPECT_FALSE(join(*job.listener, *job.context, listen_address, old_link).error.ok());
  EXPECT_EQ(job.listener->counts().accepted, 0u);
  EXPECT_EQ(job.listener->counts().rejected, 2u);
  EXPECT_THAT(job.listener->last_rejection().message(), HasSubstr("rejected a connection (127.0."));
}

TEST(TcpListener, KeepsItsAddressInTheNextEpoch) {
  ListeningJob job;
  job.open();
  const SocketAddress listen_address = job.listener->addresses()[0];
  const auto pair = join(*job.listener, *job.context, listen_address);
  ASSERT_TRUE(pair.accepted_connection);
  const Descriptor begun_handshake = connect_stranger(listen_address);
  accept_until(*job.listener, [&] { return job.listener->next_deadline() != TimePoint::max(); });
  AcceptedLinks next_acceptance = test_acceptance();
  next_acceptance.epoch = 4;
  job.listener->set_acceptance(next_acceptance);
  EXPECT_EQ(job.listener->next_deadline(), TimePoint::max());
  EXPECT_FALSE(join(*job.listener, *job.context, listen_address).error.ok());
  Link link = test_link();
  link.epoch = 4;
  const auto later_pair = join(*job.listener, *job.context, listen_address, link);
  ASSERT_TRUE(later_pair.accepted_connection) << later_pair.error.message();
  EXPECT_EQ(later_pair.accepted_connection->peer().epoch, 4u);
  EXPECT_EQ(transfer(*pair.dialing_end, *pair.accepted_connection, bytes_of("old")),
            bytes_of("old"));
}

TEST(TcpListener, ClosesConnectionsOfStrangersWithoutAnAnswer) {
  ListeningJob job;
  job.open();
  const Descriptor http_client =
      connect_stranger(job.listener->addresses()[0], "GET / HTTP/1.1\r\n\r\n");
  accept_until(*job.listener, [&] { return job.listener->counts().rejected == 1; });
  char answer = 0;
  EXPECT_LE(::recv(http_client.get(), &answer, 1, 0), 0);
}

TEST(TcpListener, ClosesConnectionsOfSlowStrangers) {
  ListeningJob job;
  job.open();
  const Descriptor idle_stranger = connect_stranger(job.listener->addresses()[0]);
  const Descriptor slow_sender = connect_stranger(job.listener->addresses()[0], "\x16\x03");
  const TimePoint now = std::chrono::steady_clock::now();
  const auto try_at = [&](TimePoint time) { EXPECT_EQ(*job.listener->try_accept(time), nullptr); };
  const TimePoint limit = test_deadline();
  for (int waiting = 0; waiting < 2 && std::chrono::steady_clock::now() < limit;) {
    try_at(now);
    waiting = job.listener->next_deadline() == TimePoint::max() ? 0 : 2;
  }
  try_at(now);
  EXPECT_EQ(job.listener->next_deadline(), now + std::chrono::seconds(5));
  // The slow sender sends its bytes one by one. Each byte arrives in time, but the deadline is for
  // the whole handshake.
  ASSERT_EQ(::send(slow_sender.get(), "\x01", 1, MSG_NOSIGNAL), 1);
  try_at(now + std::chrono::seconds(4));
  EXPECT_EQ(job.listener->counts().expired, 0u);
  try_at(now + std::chrono::seconds(5));
  EXPECT_EQ(job.listener->counts().expired, 2u);
  EXPECT_EQ(job.listener->next_deadline(), TimePoint::max());
}

// While a forked child has a copy of a socket, the kernel does not remove the socket from the epoll
// instance when we close it.
TEST(TcpListener, RemovesClosedConnectionsEvenIfAForkedChildHasCopies) {
  const auto is_ready_after = [](const auto& close_all) {
    ListeningJob job;
    job.options.handshakes_max = 1;
    job.open();
    const Descriptor stranger = connect_stranger(job.listener->addresses()[0]);
    accept_until(*job.listener, [&] { return job.listener->next_deadline() != TimePoint::max(); });
    const ForkedChild child([] {});
    close_all(*job.listener, stranger);
    EXPECT_EQ(job.listener->next_deadline(), TimePoint::max());
    EXPECT_EQ(::send(stranger.get(), "x", 1, MSG_NOSIGNAL), 1);
    return is_readable(job.listener->descriptor(), 100);
  };
  EXPECT_FALSE(is_ready_after([](TcpListener& listener, const Descriptor&) {
    EXPECT_EQ(*listener.try_accept(listener.next_deadline()), nullptr);
    EXPECT_EQ(listener.counts().expired, 1u);
  }));
  EXPECT_FALSE(is_ready_after([](TcpListener& listener, const Descriptor&) {
    listener.set_acceptance(test_acceptance());
  }));
  EXPECT_FALSE(is_ready_after([](TcpListener& listener, const Descriptor& stranger) {
    EXPECT_EQ(::send(stranger.get(), "no TLS", 6, MSG_NOSIGNAL), 6);
    accept_until(listener, [&] { return listener.counts().rejected == 1; });
  }));
  EXPECT_FALSE(is_ready_after([](TcpListener& listener, const Descriptor&) {
    const Descriptor second_stranger = connect_stranger(listener.addresses()[0]);
    accept_until(listener, [&] { return listener.counts().evicted == 1; });
    EXPECT_EQ(*listener.try_accept(listener.next_deadline()), nullptr);
  }));
}

// A forked child closes its copies of the listener's sockets. The parent still watches its own.
TEST(TcpListener, AForkedChildClosesItsCopies) {
  ListeningJob job;
  job.open();
  const Descriptor stranger = connect_stranger(job.listener->addresses()[0]);
  accept_until(*job.listener, [&] { return job.listener->next_deadline() != TimePoint::max(); });
  const ForkedChild child([&] { job.listener->close_sockets(); });
  EXPECT_FALSE(is_readable(job.listener->descriptor(), 0));
  ASSERT_EQ(::send(stranger.get(), "no TLS", 6, MSG_NOSIGNAL), 6);
  EXPECT_TRUE(is_readable(job.listener->descriptor(), 60'000));
  accept_until(*job.listener, [&] { return job.listener->counts().rejected == 1; });
  EXPECT_TRUE(is_readable(stranger.get(), 60'000));  // the listener has closed the connection
  EXPECT_TRUE(join(*job.listener, *job.context, job.listener->addresses()[0]).accepted_connection);
}

TEST(TcpListener, AMemberJoinsAmongIdleStrangers) {
  ListeningJob job({"127.0.0.1:0"});
  job.options.handshakes_max = 8;
  job.options.handshake_time_max = std::chrono::hours(1);
  job.open();
  const SocketAddress listen_address = job.listener->addresses()[0];
  std::vector<Descriptor> idle_strangers;
  for (int i = 0; i < 200; ++i)
    idle_strangers.push_back(connect_stranger(listen_address, "", "127.0.0.9:0"));
  auto pair = join(*job.listener, *job.context, listen_address);
  ASSERT_TRUE(pair.accepted_connection) << pair.error.message();
  EXPECT_EQ(job.listener->counts().expired, 0u);  // the member did not have to wait for a deadline
  accept_until(*job.listener, [&] { return job.listener->counts().evicted >= 192; });
  EXPECT_LE(job.listener->counts().evicted, 193u);
  EXPECT_EQ(job.listener->counts().rejected, 0u);
}

// Strangers from one source are evicted before a member that has only begun its handshake.
TEST(TcpListener, EvictsTheSourceWithTheMostConnections) {
  ListeningJob job;
  job.options.handshakes_max = 4;
  job.options.handshake_time_max = std::chrono::hours(1);
  job.open();
  const SocketAddress listen_address = job.listener->addresses()[0];
  auto wire = TcpConnection::dial(listen_address, address_of("127.0.0.3:0"), {});
  const auto member = TlsSession::dial(*job.context, *std::move(wire), test_link());
  accept_until(*job.listener, [&] { return job.listener->next_deadline() != TimePoint::max(); });
  std::vector<Descriptor> idle_strangers;
  for (int i = 0; i < 20; ++i)
    idle_strangers.push_back(connect_stranger(listen_address, "", "127.0.0.9:0"));
  accept_until(*job.listener, [&] { return job.listener->counts().evicted == 17; });
  std::unique_ptr<Connection> accepted;
  const TimePoint limit = test_deadline();
  while (!accepted && std::chrono::steady_clock::now() < limit) {
    ASSERT_TRUE(member->try_handshake().ok());
    accepted = *job.listener->try_accept(std::chrono::steady_clock::now());
  }
  EXPECT_EQ(job.listener->counts().evicted, 17u);
}

TEST(TcpListener, KeepsWorkingWithoutFreeDescriptors) {
  ListeningJob job;
  job.open();
  const SocketAddress listen_address = job.listener->addresses()[0];
  const Descriptor first_stranger = connect_stranger(listen_address);
  const Descriptor second_stranger = connect_stranger(listen_address);
  const Descriptor third_stranger = connect_stranger(listen_address);
  {
    const NoFreeDescriptors no_free_descriptors;
    accept_until(*job.listener, [&] { return job.listener->counts().evicted == 3; });
    char answer = 0;
    EXPECT_LE(::recv(third_stranger.get(), &answer, 1, 0), 0);
  }
  EXPECT_TRUE(join(*job.listener, *job.context, listen_address).accepted_connection);
}

TEST(TcpListener, TakesTheFirstFreePortOfTheRange) {
  ListeningJob first_job;
  first_job.open();
  const std::uint16_t taken_port = first_job.listener->addresses()[0].port;
  ListeningJob second_job;
  second_job.options.port_first = second_job.options.port_last = taken_port;
  const auto no_free_port = TcpListener::open(*second_job.context, second_job.options);
  EXPECT_EQ(no_free_port.status().code(), StatusCode::kStop);
  EXPECT_THAT(no_free_port.status().message(),
              HasSubstr("port " + std::to_string(taken_port) +
                        " is not free: cannot listen at 127.0.0.1:"));
  if (taken_port > 65'500) GTEST_SKIP() << "the range would end above the last port";
  second_job.options.port_last = static_cast<std::uint16_t>(taken_port + 30);
  second_job.open();
  EXPECT_GT(second_job.listener->addresses()[0].port, taken_port);
}

TEST(TcpListener, SaysThatNoPortOfTheRangeIsFree) {
  ListeningJob first_job;
  first_job.open();
  const std::uint16_t taken_port = first_job.listener->addresses()[0].port;
  if (taken_port == 65'535) GTEST_SKIP() << "the range would end above the last port";
  const auto next_port = static_cast<std::uint16_t>(taken_port + 1);
  ListeningJob second_job({"127.0.0.1:" + std::to_string(next_port)});
  second_job.options.port_first = second_job.options.port_last = next_port;
  // If this open() fails, another program already listens at this port. In this case, too, the port
  // is taken, as this test requires.
  const auto blocker = TcpListener::open(*second_job.context, second_job.options);
  ListeningJob third_job;
  third_job.options.port_first = taken_port;
  third_job.options.port_last = next_port;
  const auto no_free_port = TcpListener::open(*third_job.context, third_job.options);
  EXPECT_EQ(no_free_port.status().code(), StatusCode::kStop);
  EXPECT_THAT(no_free_port.status().message(),
              HasSubstr("no port of " + std::to_string(taken_port) + "-" +
                        std::to_string(next_port) + " is free: cannot listen at 127.0.0.1:"));
}

TEST(TcpListener, RejectsInvalidAddressesAndPorts) {
  const auto error_of = [](ListeningJob& job) {
    return TcpListener::open(*job.context, job.options).status();
  };
  ListeningJob without_address{std::vector<std::string>()};
  EXPECT_THAT(error_of(without_address).message(), HasSubstr("there is no address to listen at"));
  ListeningJob reversed_range;
  reversed_range.options.port_first = 10;
  reversed_range.options.port_last = 9;
  EXPECT_THAT(error_of(reversed_range).message(), HasSubstr("the range of ports 10-9 is empty"));
  ListeningJob foreign_address({"192.0.2.77:0"});
  EXPECT_EQ(error_of(foreign_address).code(), StatusCode::kFixCall);
  EXPECT_THAT(error_of(foreign_address).message(), HasSubstr("choose an address of this host"));
  ListeningJob valid_job;
  Descriptor last_free(::dup(0));
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_EQ(error_of(valid_job).code(), StatusCode::kStop);
  last_free.reset();  // the epoll instance takes this descriptor, so none is left for the socket
  EXPECT_THAT(error_of(valid_job).message(),
              HasSubstr("cannot listen at 127.0.0.1:0: socket: Too many"));
}

}  // namespace
}  // namespace farandole
