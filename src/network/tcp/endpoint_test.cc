#include "network/tcp/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

using ::testing::HasSubstr;

SocketAddress parsed_address(const std::string& text) { return *SocketAddress::parse(text); }

Status error_of(const std::string& text) { return Endpoint::parse(text).status(); }

TEST(Endpoint, ParsesAddressesAndNames) {
  for (const std::string text :
       {"10.0.0.1:4711", "[fd00::1]:4711", "node0:1", "a.b-c:65535", "[fe80::1%lo]:4711"}) {
    const auto endpoint = Endpoint::parse(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().message();
    EXPECT_EQ(endpoint->text(), text);
  }
  EXPECT_EQ(Endpoint::parse("[fd00::1]:4711")->host, "fd00::1");
}

TEST(Endpoint, SaysWhatIsWrong) {
  EXPECT_THAT(error_of("node0").message(), HasSubstr("\"node0\": the port is missing"));
  EXPECT_THAT(error_of("node0:").message(), HasSubstr("a number from 1 to 65535"));
  EXPECT_THAT(error_of("node0:0").message(), HasSubstr("a number from 1 to 65535"));
  EXPECT_THAT(error_of("node0:65536").message(), HasSubstr("a number from 1 to 65535"));
  EXPECT_THAT(error_of("node0:80x").message(), HasSubstr("a number from 1 to 65535"));
  EXPECT_THAT(error_of("fd00::1:4711").message(), HasSubstr("needs brackets"));
  EXPECT_THAT(error_of("[node0]:4711").message(), HasSubstr("only an IPv6 address has them"));
  EXPECT_THAT(error_of("no de:4711").message(), HasSubstr("neither a host name"));
  EXPECT_THAT(error_of(":4711").message(), HasSubstr("neither a host name"));
  EXPECT_THAT(error_of("").message(), HasSubstr("[fd00::1]:4711"));
}

TEST(Endpoint, ListensAtItsOwnAddressesOnly) {
  const std::vector<InterfaceAddress> host_addresses{{"eth0", *SocketAddress::parse_ip("10.0.0.1")},
                                                     {"eth0", *SocketAddress::parse_ip("fd00::1")}};
  const Endpoint endpoint{"node0", 4711};
  const auto own_result =
      own_addresses(endpoint,
                    {parsed_address("10.0.0.1:4711"), parsed_address("[fd00::1]:4711"),
                     parsed_address("10.0.0.9:4711")},
                    host_addresses, "node 0");
  ASSERT_TRUE(own_result.ok()) << own_result.status().message();
  EXPECT_EQ(*own_result,
            (std::vector{parsed_address("10.0.0.1:4711"), parsed_address("[fd00::1]:4711")}));
  const auto foreign_result =
      own_addresses(endpoint, {parsed_address("10.0.0.9:4711")}, host_addresses, "node 0");
  EXPECT_THAT(foreign_result.status().message(),
              HasSubstr("10.0.0.9 is not an address of this host"));
  EXPECT_THAT(foreign_result.status().message(), HasSubstr("must be on the host of node 0"));
}

TEST(Endpoint, RecognizesNamesWithOnlyLoopbackAddresses) {
  const std::vector<SocketAddress> loopback{parsed_address("127.0.1.1:4711")};
  EXPECT_TRUE(is_only_loopback({"node0", 4711}, loopback));
  EXPECT_FALSE(is_only_loopback({"localhost", 4711}, loopback));
  EXPECT_FALSE(is_only_loopback({"127.0.1.1", 4711}, loopback));
  EXPECT_FALSE(
      is_only_loopback({"node0", 4711}, {loopback.front(), parsed_address("10.0.0.1:4711")}));
}

}  // namespace
}  // namespace farandole
