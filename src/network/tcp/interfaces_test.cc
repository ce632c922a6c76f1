#include "network/tcp/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

InterfaceAddress interface_address(const std::string& interface, const std::string& ip) {
  return {interface, *SocketAddress::parse_ip(ip)};
}

const std::vector<InterfaceAddress> kHost{
    interface_address("lo", "127.0.0.1"),         interface_address("lo", "::1"),
    interface_address("docker0", "172.17.0.1"),   interface_address("eth0", "192.168.1.5"),
    interface_address("eth0", "fe80::5"),         interface_address("eth0", "fd00::5"),
    interface_address("ib0", "10.0.0.5"),         interface_address("ib1", "10.0.1.5"),
    interface_address("veth12ab", "169.254.3.4"), interface_address("virbr0", "192.168.122.1")};

std::vector<std::string> chosen_texts(const std::vector<InterfaceAddress>& host,
                                      const InterfaceChoice& choice) {
  const auto chosen = choose_addresses(host, choice);
  if (!chosen.ok()) return {chosen.status().message()};
  std::vector<std::string> texts;
  for (const SocketAddress& address : *chosen) texts.push_back(address.ip_text());
  return texts;
}

TEST(Interfaces, OrdinaryOnesAreTheDefault) {
  EXPECT_THAT(chosen_texts(kHost, {}),
              ElementsAre("192.168.1.5", "fd00::5", "10.0.0.5", "10.0.1.5"));
}

TEST(Interfaces, OthersAreOnlyUsedIfThereAreNoBetterOnes) {
  EXPECT_THAT(chosen_texts(kHost, {.avoid = {"eth0", "ib*"}}),
              ElementsAre("172.17.0.1", "192.168.122.1"));
  EXPECT_THAT(chosen_texts(kHost, {.avoid = {"eth*", "ib*", "172.16.0.0/12", "virbr0"}}),
              ElementsAre("169.254.3.4"));
  EXPECT_THAT(chosen_texts({kHost[0], kHost[1]}, {}), ElementsAre("127.0.0.1", "::1"));
}

TEST(Interfaces, AreChosenByNameBeginningAndRange) {
  EXPECT_THAT(chosen_texts(kHost, {.use = {"ib1"}}), ElementsAre("10.0.1.5"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"ib*"}}), ElementsAre("10.0.0.5", "10.0.1.5"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"10.0.1.0/24", "ib*"}}),
              ElementsAre("10.0.1.5", "10.0.0.5"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"fd00::/16"}}), ElementsAre("fd00::5"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"127.0.0.1"}}), ElementsAre("127.0.0.1"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"ib*"}, .avoid = {"10.0.0.5"}}),
              ElementsAre("10.0.1.5"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"docker0"}}), ElementsAre("172.17.0.1"));
}

TEST(Interfaces, ErrorsListTheAddressesOfTheHost) {
  EXPECT_THAT(chosen_texts({kHost[0], kHost[3]}, {.use = {"eth1", "ib*"}, .avoid = {"lo"}}),
              ElementsAre("no address of this host is left for the network: chosen were eth1, ib* "
                          "without lo, and the host has lo 127.0.0.1, eth0 192.168.1.5; choose "
                          "another interface or range of addresses"));
  EXPECT_THAT(chosen_texts({}, {})[0],
              HasSubstr("chosen were all interfaces, and the host has no a"));
  EXPECT_THAT(chosen_texts(kHost, {.use = {"10.0.0.0/40"}})[0], HasSubstr("a number from 0 to 32"));
  EXPECT_THAT(chosen_texts(kHost, {.avoid = {""}})[0], HasSubstr("an empty text names no network"));
}

TEST(Interfaces, OfThisHostIncludeLoopback) {
  const auto host = list_interface_addresses();
  ASSERT_TRUE(host.ok()) << host.status().message();
  EXPECT_TRUE(std::ranges::any_of(*host, [](const InterfaceAddress& entry) {
    return entry.interface == "lo" && entry.address.is_loopback();
  }));
  EXPECT_TRUE(choose_addresses(*host, {}).ok());
}

TEST(Interfaces, CannotBeListedWithoutADescriptor) {
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_THAT(list_interface_addresses().status().message(),
              HasSubstr("cannot list the network interfaces of this host: Too many open files"));
}

}  // namespace
}  // namespace farandole
