#include "remote/own_host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>

namespace farandole {
namespace {

TEST(OwnHost, ItsNamesAndAddressesMeanThisHost) {
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  const std::string full_name = name.data();
  for (const std::string& own_name :
       {std::string("localhost"), std::string("127.0.0.1"), std::string("127.3.2.1"),
        std::string("::1"), full_name, full_name.substr(0, full_name.find('.'))})
    EXPECT_TRUE(is_own_host({.name = own_name, .user = ""})) << own_name;
}

TEST(OwnHost, ItsEntryMeansThisHost) {
  EXPECT_TRUE(is_own_host(own_host()));
  EXPECT_EQ(own_host().slots, 0);
}

TEST(OwnHost, OtherEntriesDoNotMeanThisHost) {
  for (const char* other_name :
       {"198.51.100.1", "2001:db8::1", "other-host.example", "localhost.other"})
    EXPECT_FALSE(is_own_host({.name = other_name, .user = ""})) << other_name;
}

TEST(OwnHost, AnEntryWithAUserDoesNotMeanThisHost) {
  EXPECT_FALSE(is_own_host({.name = "localhost", .user = "alice"}));
}

TEST(OwnHost, TheProgramIsThisOne) {
  EXPECT_TRUE(std::filesystem::equivalent(path_of_program(), "/proc/self/exe"));
}

}  // namespace
}  // namespace farandole
