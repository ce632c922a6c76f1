#include "network/link.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace farandole {
namespace {

const Link kLink{.job = 7,
                 .epoch = 3,
                 .dialer = {Role::kAgent, 1},
                 .listener = {Role::kLauncher, 0},
                 .seals_data = false};

TEST(Link, ItsIdentityContainsAllItsFields) {
  const auto parsed_link = parse_identity(identity_of(kLink));
  ASSERT_TRUE(parsed_link.ok()) << parsed_link.status().message();
  EXPECT_EQ(*parsed_link, kLink);
}

TEST(Link, DiffersInItsIdentityIfAnyFactDiffers) {
  std::vector<Link> links(8, kLink);
  links[1].job = 8;
  links[2].epoch = 4;
  links[3].dialer.role = Role::kWorker;
  links[4].dialer.number = 2;
  links[5].listener.role = Role::kAgent;
  links[6].listener.number = 1;
  links[7].seals_data = true;
  std::set<Bytes> identities;
  for (const Link& link : links) identities.insert(identity_of(link));
  EXPECT_EQ(identities.size(), links.size());
}

TEST(Link, RejectsCutAndChangedIdentities) {
  const Bytes identity = identity_of(kLink);
  for (std::size_t length = 0; length < identity.size(); ++length)
    EXPECT_FALSE(parse_identity(std::span(identity).first(length)).ok()) << length;
  Bytes longer_identity = identity;
  longer_identity.push_back(std::byte{0});
  EXPECT_FALSE(parse_identity(longer_identity).ok());
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    Bytes changed_identity = identity;
    changed_identity[random() % changed_identity.size()] ^=
        static_cast<std::byte>(1 + random() % 255);
    const auto parsed_link = parse_identity(changed_identity);
    EXPECT_TRUE(!parsed_link.ok() || identity_of(*parsed_link) == changed_identity);
  }
}

TEST(Link, NamesItsParties) {
  EXPECT_EQ(name_of({Role::kWorker, 12}), "worker 12");
  EXPECT_EQ(name_of({Role::kAgent, 3}), "agent 3");
  EXPECT_EQ(name_of({Role::kLauncher, 0}), "the launcher");
  EXPECT_EQ(name_of({}), "an unknown process");
}

}  // namespace
}  // namespace farandole
