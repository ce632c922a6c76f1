#include "network/tcp/socket_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/un.h>

#include <random>
#include <string>

#include "base/format.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  const auto parsed_address = SocketAddress::parse(text);
  EXPECT_EQ(parsed_address.status().code(), StatusCode::kFixCall) << text;
  return parsed_address.status().message();
}

TEST(SocketAddress, PrintsWhatItHasParsed) {
  for (const std::string text :
       {"10.0.0.1:4711", "255.255.255.255:65535", "0.0.0.0:0", "[::1]:4711", "[::]:1",
        "[fd00:1:2:3:4:5:6:7]:80", "[::ffff:10.0.0.1]:9", "[fe80::1%lo]:5"}) {
    const auto parsed_address = SocketAddress::parse(text);
    ASSERT_TRUE(parsed_address.ok()) << parsed_address.status().message();
    EXPECT_EQ(parsed_address->text(), text);
    const auto converted_address = socket_address_of(kernel_address_of(*parsed_address).get());
    ASSERT_TRUE(converted_address.ok());
    EXPECT_EQ(*converted_address, *parsed_address);
  }
}

TEST(SocketAddress, AnInterfaceCanBeANumber) {
  const auto parsed_address = SocketAddress::parse_ip("fe80::1%999999");
  ASSERT_TRUE(parsed_address.ok());
  EXPECT_EQ(parsed_address->scope, 999999u);
  EXPECT_EQ(parsed_address->ip_text(), "fe80::1%999999");
}

TEST(SocketAddress, SaysWhatIsWrong) {
  EXPECT_THAT(error_of(""), HasSubstr("'' is not a network address: the port is missing"));
  EXPECT_THAT(error_of("10.0.0.1"), HasSubstr("the port is missing"));
  EXPECT_THAT(error_of("10.0.0.1:"), HasSubstr("not a number from 0 to 65535"));
  EXPECT_THAT(error_of("10.0.0.1:65536"), HasSubstr("not a number from 0 to 65535"));
  EXPECT_THAT(error_of("10.0.0.1:-1"), HasSubstr("not a number"));
  EXPECT_THAT(error_of("10.0.0.1:8x"), HasSubstr("not a number"));
  EXPECT_THAT(error_of("10.0.0:80"), HasSubstr("this is no IPv4 address"));
  EXPECT_THAT(error_of("example.org:80"), HasSubstr("this is no IPv4 address"));
  EXPECT_THAT(error_of("::1:80"), HasSubstr("stands in brackets"));
  EXPECT_THAT(error_of("[10.0.0.1]:80"), HasSubstr("only an IPv6 address stands in brackets"));
  EXPECT_THAT(error_of("[::x]:80"), HasSubstr("this is no IPv6 address"));
  EXPECT_THAT(error_of("[::1%lo]:80"), HasSubstr("only a link-local IPv6 address"));
  EXPECT_THAT(error_of("[fe80::1%none such]:80"), HasSubstr("no interface 'none such'"));
  EXPECT_THAT(error_of("[fe80::1%lo:x\"]:80"), HasSubstr("no interface 'lo:x\"'"));
  EXPECT_THAT(error_of(std::string("10.0.0.1\0:80", 12)), HasSubstr("it has a zero byte"));
  EXPECT_THAT(error_of(std::string("[fe80::1%lo\0x]:80", 17)), HasSubstr("it has a zero byte"));
  EXPECT_THAT(error_of("\x1b[31m:80"), HasSubstr("\\x1b"));
  EXPECT_LT(error_of(std::string(10'000, 'x')).size(), 300u);
}

TEST(SocketAddress, SurvivesRandomText) {
  std::mt19937 random(1);
  const std::string alphabet = "0123456789abcdef:.%[]/x\0 ";
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (auto length = random() % 24; length > 0; --length)
      text += alphabet[random() % alphabet.size()];
    const auto parsed_address = SocketAddress::parse(text);
    EXPECT_TRUE(!parsed_address.ok() ||
                *SocketAddress::parse(parsed_address->text()) == *parsed_address)
        << text;
    const auto range = AddressRange::parse(text);
    EXPECT_TRUE(!range.ok() || range->contains(range->first)) << text;
  }
}

TEST(SocketAddress, KnowsSpecialAddresses) {
  const auto ip = [](const char* text) { return *SocketAddress::parse_ip(text); };
  EXPECT_TRUE(ip("127.0.0.1").is_loopback());
  EXPECT_TRUE(ip("127.9.9.9").is_loopback());
  EXPECT_TRUE(ip("::1").is_loopback());
  EXPECT_FALSE(ip("::2").is_loopback());
  EXPECT_FALSE(ip("10.0.0.1").is_loopback());
  EXPECT_TRUE(ip("169.254.1.1").is_link_local());
  EXPECT_TRUE(ip("febf::1").is_link_local());
  EXPECT_FALSE(ip("fec0::1").is_link_local());
  EXPECT_FALSE(ip("169.253.1.1").is_link_local());
}

TEST(SocketAddress, RejectsOtherFamiliesOfTheKernel) {
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  const auto converted_result = socket_address_of(reinterpret_cast<const sockaddr*>(&unix_address));
  EXPECT_THAT(converted_result.status().message(), HasSubstr("family 1 is neither IPv4 nor IPv6"));
  EXPECT_THAT(own_address_of(-1).status().message(), HasSubstr("getsockname on a TCP socket"));
  EXPECT_THAT(peer_address_of(-1).status().message(), HasSubstr("getpeername on a TCP socket"));
}

TEST(AddressRange, ContainsItsAddresses) {
  const auto contains = [](const char* range, const char* ip) {
    const auto parsed_range = AddressRange::parse(range);
    EXPECT_TRUE(parsed_range.ok()) << parsed_range.status().message();
    return parsed_range->contains(*SocketAddress::parse_ip(ip));
  };
  EXPECT_TRUE(contains("10.0.0.0/8", "10.255.0.1"));
  EXPECT_FALSE(contains("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(contains("10.0.0.128/25", "10.0.0.255"));
  EXPECT_FALSE(contains("10.0.0.128/25", "10.0.0.127"));
  EXPECT_TRUE(contains("10.1.2.3", "10.1.2.3"));
  EXPECT_FALSE(contains("10.1.2.3", "10.1.2.4"));
  EXPECT_TRUE(contains("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(contains("0.0.0.0/0", "::1"));
  EXPECT_TRUE(contains("fd00::/9", "fd7f::1"));
  EXPECT_FALSE(contains("fd00::/9", "fd80::1"));
  EXPECT_TRUE(contains("::1/128", "::1"));
}

TEST(AddressRange, SaysWhatIsWrong) {
  const auto error = [](const char* text) { return AddressRange::parse(text).status().message(); };
  EXPECT_THAT(error("10.0.0.0/33"), HasSubstr("there must be a number from 0 to 32"));
  EXPECT_THAT(error("fd00::/129"), HasSubstr("there must be a number from 0 to 128"));
  EXPECT_THAT(error("10.0.0.0/"), HasSubstr("there must be a number"));
  EXPECT_THAT(error("ten/8"), HasSubstr("this is no IPv4 address"));
}

}  // namespace
}  // namespace farandole
