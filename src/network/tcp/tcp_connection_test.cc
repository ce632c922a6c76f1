#include "network/tcp/tcp_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "base/no_descriptors_in_test.h"
#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

// A listening socket on the loopback interface, without TLS.
struct PlainListener {
  explicit PlainListener(const std::string& address) {
    const KernelAddress kernel = kernel_address_of(address_of(address));
    socket = Descriptor(::socket(kernel.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket.get(), kernel.get(), kernel.bytes), 0);
    EXPECT_EQ(::listen(socket.get(), 10), 0);
  }
  SocketAddress listen_address() const { return *own_address_of(socket.get()); }
  Descriptor accept() const {
    return Descriptor(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  Descriptor socket;
};

struct TcpPair {
  explicit TcpPair(const std::string& address, const TcpOptions& options = {})
      : listener(address),
        dialing_end(*TcpConnection::dial(listener.listen_address(), {}, options)),
        accepting_end(*TcpConnection::adopt(listener.accept(), options)) {}
  PlainListener listener;
  std::unique_ptr<TcpConnection> dialing_end;
  std::unique_ptr<TcpConnection> accepting_end;
};

// Receives until the connection ends, and returns the final error.
Status receive_until_error(Connection& connection) {
  Bytes into(1 << 16);
  for (;;) {
    const auto received = connection.try_receive(into);
    if (!received.ok()) return received.status();
    pollfd entry{connection.descriptor(), POLLIN, 0};
    ::poll(&entry, 1, 1000);
  }
}

int option_of(const Connection& connection, int level, int option) {
  int value = -1;
  socklen_t bytes = sizeof(value);
  EXPECT_EQ(::getsockopt(connection.descriptor(), level, option, &value, &bytes), 0);
  return value;
}

TEST(TcpConnection, CarriesBytesOverBothFamilies) {
  for (const std::string address : {"127.0.0.1:0", "[::1]:0"}) {
    const TcpPair pair(address);
    const Bytes sent = random_bytes(3'000'000, 1);
    EXPECT_EQ(transfer(*pair.dialing_end, *pair.accepting_end, sent), sent);
    EXPECT_EQ(transfer(*pair.accepting_end, *pair.dialing_end, sent), sent);
    const std::string listen_text = pair.listener.listen_address().text();
    EXPECT_THAT(pair.dialing_end->peer().addresses, HasSubstr(" -> " + listen_text));
    EXPECT_THAT(pair.accepting_end->peer().addresses, HasSubstr(listen_text + " -> "));
    EXPECT_EQ(pair.dialing_end->peer().party.role, Role::kUnknown);
  }
}

TEST(TcpConnection, SendsTwoPartsInOrder) {
  const TcpPair pair("127.0.0.1:0");
  ASSERT_EQ(*pair.dialing_end->try_send(bytes_of("head"), bytes_of("body")), 8u);
  EXPECT_EQ(*pair.dialing_end->try_send({}, {}), 0u);
  Bytes into(8);
  while (*pair.accepting_end->try_receive(into) == 0) continue;
  EXPECT_EQ(into, bytes_of("headbody"));
  EXPECT_EQ(*pair.accepting_end->try_receive(into), 0u);
  EXPECT_EQ(*pair.accepting_end->try_receive({}), 0u);
}

TEST(TcpConnection, SendsAtOnceAndWatchesForSilence) {
  const TcpPair pair("127.0.0.1:0", {.silence_max = std::chrono::milliseconds(8000)});
  for (const Connection* end : {pair.dialing_end.get(), pair.accepting_end.get()}) {
    EXPECT_EQ(option_of(*end, IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option_of(*end, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option_of(*end, IPPROTO_TCP, TCP_KEEPIDLE), 2);
    EXPECT_EQ(option_of(*end, IPPROTO_TCP, TCP_KEEPINTVL), 2);
    EXPECT_EQ(option_of(*end, IPPROTO_TCP, TCP_USER_TIMEOUT), 8000);
  }
}

// The kernel counts a closed window as silence; see tcp_connection.h.
TEST(TcpConnection, FailsIfThePeerDoesNotReceiveForLong) {
  const TcpPair pair("127.0.0.1:0", {.silence_max = std::chrono::milliseconds(500)});
  const Bytes payload(1 << 20);
  Status error;
  const TimePoint limit = test_deadline();
  while (error.ok() && std::chrono::steady_clock::now() < limit) {
    error = pair.dialing_end->try_send({}, payload).status();
    pollfd entry{pair.dialing_end->descriptor(), POLLOUT, 0};
    ::poll(&entry, 1, 1000);
  }
  EXPECT_EQ(error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(error.message(), HasSubstr("Connection timed out"));
}

TEST(TcpConnection, AHalfClosedPeerStillReceives) {
  const TcpPair pair("127.0.0.1:0");
  ASSERT_EQ(*pair.dialing_end->try_send({}, bytes_of("last")), 4u);
  ASSERT_EQ(::shutdown(pair.dialing_end->descriptor(), SHUT_WR), 0);
  Bytes into(10);
  while (*pair.accepting_end->try_receive(into) == 0) continue;
  EXPECT_EQ(receive_until_error(*pair.accepting_end).message(),
            "the peer has ended the TCP connection " + pair.accepting_end->peer().addresses);
  const Bytes answer = random_bytes(100'000, 1);
  EXPECT_EQ(transfer(*pair.accepting_end, *pair.dialing_end, answer), answer);
}

TEST(TcpConnection, ReportsAPeerThatIsGone) {
  const TcpPair pair("127.0.0.1:0");
  const linger abort{1, 0};  // close() sends a reset
  ::setsockopt(pair.dialing_end->descriptor(), SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
  pair.dialing_end->close();
  EXPECT_EQ(pair.dialing_end->descriptor(), -1);
  const Status receive_error = receive_until_error(*pair.accepting_end);
  EXPECT_EQ(receive_error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(receive_error.message(), HasSubstr("receive: Connection reset by peer"));
  const Status send_error = pair.accepting_end->try_send({}, bytes_of("x")).status();
  EXPECT_EQ(send_error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(send_error.message(), HasSubstr("send: Broken pipe"));
  EXPECT_EQ(pair.dialing_end->try_send({}, bytes_of("x")).status().code(), StatusCode::kStop);
}

TEST(TcpConnection, ReportsThatNoProcessListens) {
  SocketAddress listen_address;
  {
    const PlainListener listener("127.0.0.1:0");
    listen_address = listener.listen_address();
  }
  auto dialing_end = TcpConnection::dial(listen_address, {}, {});
  const Status error = dialing_end.ok() ? receive_until_error(**dialing_end) : dialing_end.status();
  EXPECT_EQ(error.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(error.message(), HasSubstr("Connection refused (no process listens there)"));
  EXPECT_THAT(error.message(), HasSubstr(listen_address.text()));
}

TEST(TcpConnection, CanUseAChosenLocalAddress) {
  const PlainListener listener("127.0.0.1:0");
  const SocketAddress local_address = address_of("127.0.0.5:0");
  const auto dialing_end = TcpConnection::dial(listener.listen_address(), local_address, {});
  ASSERT_TRUE(dialing_end.ok()) << dialing_end.status().message();
  EXPECT_THAT((*dialing_end)->peer().addresses, HasSubstr("127.0.0.5:"));
  const auto foreign =
      TcpConnection::dial(listener.listen_address(), address_of("192.0.2.77:0"), {});
  EXPECT_EQ(foreign.status().code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(foreign.status().message(), HasSubstr("bind: Cannot assign requested address"));
  EXPECT_TRUE(TcpConnection::dial(listener.listen_address(), address_of("[::1]:0"), {}).ok());
}

TEST(TcpConnection, ReportsErrorsOfTheSystem) {
  const auto multicast = TcpConnection::dial(address_of("224.0.0.1:1"), {}, {});
  EXPECT_EQ(multicast.status().code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(multicast.status().message(), HasSubstr("connect: "));
  std::array<int, 2> sockets{-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  const Descriptor second_end(sockets[1]);
  EXPECT_THAT(TcpConnection::adopt(Descriptor(sockets[0]), {}).status().message(),
              HasSubstr("setsockopt("));
  Descriptor unconnected(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(TcpConnection::adopt(std::move(unconnected), {}).status().code(),
            StatusCode::kRebuildGroup);
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_THAT(TcpConnection::dial(address_of("127.0.0.1:1"), {}, {}).status().message(),
              HasSubstr("cannot make a TCP socket: Too many open files"));
}

}  // namespace
}  // namespace farandole
