#include "workers/reserved_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

using ::testing::Eq;

// The addresses on which a program may listen.
struct Address {
  int family;
  const char* text;
};

// Returns a socket that is bound to the port, or an invalid one with errno.
Descriptor bind_socket(const Address& address, int port, bool reuse_address) {
  Descriptor socket(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int option = reuse_address ? 1 : 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &option, sizeof(option));
  sockaddr_in6 ipv6{};
  sockaddr_in ipv4{};
  ipv6.sin6_family = AF_INET6;
  ipv4.sin_family = AF_INET;
  ipv6.sin6_port = ipv4.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool is_ipv6 = address.family == AF_INET6;
  void* const ip_address = is_ipv6 ? static_cast<void*>(&ipv6.sin6_addr) : &ipv4.sin_addr;
  EXPECT_EQ(::inet_pton(address.family, address.text, ip_address), 1);
  const auto* const generic_address =
      is_ipv6 ? reinterpret_cast<const sockaddr*>(&ipv6) : reinterpret_cast<const sockaddr*>(&ipv4);
  if (::bind(socket.get(), generic_address, is_ipv6 ? sizeof(ipv6) : sizeof(ipv4)) != 0)
    socket.reset();
  return socket;
}

ReservedPort reserve_port() {
  auto port = ReservedPort::create();
  EXPECT_TRUE(port.ok()) << port.status().message();
  return std::move(port).value();
}

class ListeningAddress : public ::testing::TestWithParam<Address> {};

TEST_P(ListeningAddress, CanBeUsedByAProgramThatAsksForThePort) {
  const ReservedPort port = reserve_port();
  for (int round = 0; round < 2; ++round) {  // the port stays reserved after a listener has ended
    const Descriptor listener = bind_socket(GetParam(), port.number(), true);
    ASSERT_TRUE(listener.valid()) << std::strerror(errno);
    EXPECT_EQ(::listen(listener.get(), 8), 0) << std::strerror(errno);
  }
}

TEST_P(ListeningAddress, ProgramsWithoutReuseaddrCannotUseIt) {
  const ReservedPort port = reserve_port();
  EXPECT_FALSE(bind_socket(GetParam(), port.number(), false).valid());
  EXPECT_EQ(errno, EADDRINUSE);
}

INSTANTIATE_TEST_SUITE_P(All, ListeningAddress,
                         ::testing::Values(Address{AF_INET6, "::"}, Address{AF_INET6, "::1"},
                                           Address{AF_INET, "0.0.0.0"},
                                           Address{AF_INET, "127.0.0.1"}));

TEST(ReservedPort, IsGivenToOneJobOnly) {
  std::vector<ReservedPort> ports;
  std::vector<Descriptor> listeners;
  std::set<int> numbers;
  for (int job = 0; job < 50; ++job) {
    ports.push_back(reserve_port());
    numbers.insert(ports.back().number());
    if (job % 2 == 0) continue;
    listeners.push_back(bind_socket({AF_INET6, "::"}, ports.back().number(), true));
    EXPECT_EQ(::listen(listeners.back().get(), 8), 0);
  }
  EXPECT_EQ(numbers.size(), 50U);
}

TEST(ReservedPort, AcceptsNoConnection) {
  const ReservedPort port = reserve_port();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port.number()));
  const Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(ReservedPort, AnErrorHasTheReason) {
  const NoFreeDescriptors no_free_descriptors;
  const auto port = ReservedPort::create();
  EXPECT_EQ(port.status().code(), StatusCode::kStop);
  EXPECT_THAT(port.status().message(), Eq("Too many open files"));
}

}  // namespace
}  // namespace farandole
