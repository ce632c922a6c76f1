#include "environment/endpoint_variables.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace farandole {
namespace {

std::optional<std::string> endpoint(const std::map<std::string, std::string>& variables) {
  const Environment environment = [&](const char* name) -> const char* {
    const auto variable = variables.find(name);
    return variable == variables.end() ? nullptr : variable->second.c_str();
  };
  return endpoint_of(environment, {.host_list = "LIST",
                                   .host = "HOST",
                                   .address = "ADDRESS",
                                   .port = "PORT",
                                   .job = "JOB",
                                   .part = "PART"});
}

TEST(EndpointVariables, GiveAHostAndAPort) {
  EXPECT_EQ(endpoint({{"HOST", "hen"}, {"PORT", "4711"}}), "hen:4711");
  EXPECT_EQ(endpoint({{"HOST", "fd00::1"}, {"PORT", "4711"}}), "[fd00::1]:4711");
  EXPECT_EQ(endpoint({{"ADDRESS", "10.0.0.4:6000"}, {"HOST", "hen"}, {"PORT", "4711"}}),
            "10.0.0.4:6000");
  EXPECT_EQ(endpoint({{"LIST", "tux[003-005],hen"}, {"PORT", "12000-12001"}}), "tux003:12000");
}

TEST(EndpointVariables, JobsHaveDifferentPorts) {
  const auto port = [](const std::string& job, const std::string& part) {
    return endpoint({{"HOST", "hen"}, {"JOB", job}, {"PART", part}}).value();
  };
  EXPECT_EQ(port("17", "0"), "hen:20527");
  EXPECT_EQ(port("17", "1"), "hen:20528");
  EXPECT_EQ(port("17", ""), "hen:20527");
  EXPECT_EQ(port("29500", "0"), "hen:24500");
  // The number of the job may be the port of torch.distributed, which we must not use.
  for (int number = 20000; number < 30000; ++number)
    for (const std::string part : {"0", "1", "10"})
      ASSERT_NE(port(std::to_string(number), part), "hen:" + std::to_string(number));
}

TEST(EndpointVariables, MayBeIncomplete) {
  EXPECT_EQ(endpoint({}), std::nullopt);
  EXPECT_EQ(endpoint({{"HOST", "hen"}}), std::nullopt);
  EXPECT_EQ(endpoint({{"PORT", "4711"}}), std::nullopt);
  EXPECT_EQ(endpoint({{"HOST", "hen"}, {"PORT", "0"}}), std::nullopt);
  EXPECT_EQ(endpoint({{"HOST", "hen"}, {"PORT", "65536"}}), std::nullopt);
  EXPECT_EQ(endpoint({{"HOST", "hen"}, {"PORT", "x"}}), std::nullopt);
}

TEST(EndpointVariables, TheFirstHostOfAListIsFound) {
  EXPECT_EQ(first_of_host_list("tux003"), "tux003");
  EXPECT_EQ(first_of_host_list("tux[003-005,7],hen"), "tux003");
  EXPECT_EQ(first_of_host_list("a[1,3]b[04-09].example"), "a1b04.example");
  EXPECT_EQ(first_of_host_list("hen,tux[1-2]"), "hen");
  EXPECT_EQ(first_of_host_list(""), "");
}

TEST(EndpointVariables, LeadingNumbersAreRead) {
  EXPECT_EQ(leading_number("2"), 2U);
  EXPECT_EQ(leading_number("2(x3),1"), 2U);
  EXPECT_EQ(leading_number("2,1"), 2U);
  EXPECT_EQ(leading_number("12000-12001"), 12000U);
  for (const char* const text : {"", "x", "2x", "-1", " 2", "4294967296"})
    EXPECT_EQ(leading_number(text), std::nullopt) << text;
}

}  // namespace
}  // namespace farandole
