#include "network/tcp/listen_knobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ListenKnobs, InterfacesAreNamesRangesAndExclusions) {
  const auto choice = parse_interfaces("eth0,!docker0,10.0.0.0/8,!ib*");
  EXPECT_THAT(choice.use, ElementsAre("eth0", "10.0.0.0/8"));
  EXPECT_THAT(choice.avoid, ElementsAre("docker0", "ib*"));
  EXPECT_THAT(parse_interfaces("").use, IsEmpty());
}

TEST(ListenKnobs, PortsAreOnePortOrARange) {
  EXPECT_EQ(parse_ports("")->first, 0);
  EXPECT_EQ(parse_ports("")->last, 0);
  EXPECT_EQ(parse_ports("20000-20099")->first, 20000);
  EXPECT_EQ(parse_ports("20000-20099")->last, 20099);
  EXPECT_EQ(parse_ports("65535")->first, 65535);
  EXPECT_EQ(parse_ports("65535")->last, 65535);
  for (const char* const invalid_text : {"0", "65536", "2-1", "1-", "-1", "1-2-3", "1 - 2", "x"})
    EXPECT_EQ(parse_ports(invalid_text).status(),
              Status::fix_call("FARANDOLE_PORTS is \"" + std::string(invalid_text) +
                               "\"; it must be a port from 1 to 65535, or a range such as "
                               "20000-20099"));
}

}  // namespace
}  // namespace farandole
