#include "network/tcp/host_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

TEST(HostName, IsANameOrAnAddress) {
  for (const std::string name :
       {"node-1", "job-worker-0.job.ns.svc", "a.b.", "4711", "10.0.0.1", "fd00::1", "node_7", "X"})
    EXPECT_TRUE(check_host_name(name).ok()) << name;
  for (const std::string& name :
       {std::string(), std::string("-oProxyCommand=x"), std::string("a b"), std::string("a;b"),
        std::string("a..b"), std::string("."), std::string("a-"), std::string("a\nb"),
        std::string("a\0b", 3), std::string(64, 'a'), std::string("ü"), std::string("[::1]")}) {
    EXPECT_EQ(check_host_name(name).code(), StatusCode::kFixCall) << name;
  }
  std::string longest_name;
  for (int i = 0; i < 127; ++i) longest_name += "a.";
  EXPECT_TRUE(check_host_name(longest_name).ok());
  EXPECT_FALSE(check_host_name("b" + longest_name).ok());
  EXPECT_THAT(check_host_name("a\nb").message(), HasSubstr("'a\\x0ab' is neither a host name nor"));
}

TEST(HostName, AnAddressNeedsNoServer) {
  const auto v4 = resolve_host("127.0.0.1", 4711, test_deadline());
  ASSERT_TRUE(v4.ok()) << v4.status().message();
  EXPECT_EQ(v4->at(0).text(), "127.0.0.1:4711");
  const auto v6 = resolve_host("::1", 4711, test_deadline());
  ASSERT_TRUE(v6.ok()) << v6.status().message();
  EXPECT_EQ(v6->at(0).text(), "[::1]:4711");
}

TEST(HostName, IsLookedUpUntilItIsKnown) {
  int tries = 0;
  const auto addresses =
      resolve_host("late", 80, test_deadline(), [&](const std::string& name, auto port) {
        EXPECT_EQ(name, "late");
        if (++tries < 3) return Result<std::vector<SocketAddress>>(Status::retry("not yet"));
        return Result<std::vector<SocketAddress>>(
            std::vector{address_of("10.0.0.1:1").with_port(port)});
      });
  ASSERT_TRUE(addresses.ok()) << addresses.status().message();
  EXPECT_EQ(addresses->at(0).text(), "10.0.0.1:80");
  EXPECT_EQ(tries, 3);
}

TEST(HostName, AnUnknownNameIsAnError) {
  const auto now = std::chrono::steady_clock::now();
  const auto always_unknown = [](const auto&, auto) {
    return Result<std::vector<SocketAddress>>(Status::retry("Name or service not known"));
  };
  const auto addresses = resolve_host("nowhere", 80, now, always_unknown);
  EXPECT_EQ(addresses.status().code(), StatusCode::kStop);
  EXPECT_EQ(addresses.status().message(),
            "cannot find the host 'nowhere' after 1 tries: Name or service not known; check the "
            "name and the DNS of this host");
  EXPECT_EQ(resolve_host("a b", 80, now, always_unknown).status().code(), StatusCode::kFixCall);
  // The text cannot be a host name, so look_up_host() asks no name server.
  EXPECT_EQ(look_up_host("a..b", 80).status().code(), StatusCode::kRetry);
}

}  // namespace
}  // namespace farandole
