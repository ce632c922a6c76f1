#include "nodes/node_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

using ::testing::HasSubstr;

NodeFlagValues usual_flag_values() {
  return {.join = "10.0.0.1:4711", .nodes = "2", .node = "1", .secret = "file"};
}

std::string error_of(const NodeFlagValues& flag_values) {
  return parse_node_options(flag_values).status().message();
}

TEST(NodeOptions, WithoutFlagsTheJobIsOnOneHost) {
  const auto options = parse_node_options({});
  ASSERT_TRUE(options.ok());
  EXPECT_FALSE(options->has_value());
}

TEST(NodeOptions, AllFlagsTogetherDescribeTheNode) {
  const auto options = parse_node_options(usual_flag_values());
  ASSERT_TRUE(options.ok()) << options.status().message();
  ASSERT_TRUE(options->has_value());
  EXPECT_EQ((*options)->endpoint.text(), "10.0.0.1:4711");
  EXPECT_EQ((*options)->nodes, 2);
  EXPECT_EQ((*options)->node, 1);
}

TEST(NodeOptions, ErrorsNameTheMissingFlag) {
  NodeFlagValues flag_values = usual_flag_values();
  flag_values.secret.reset();
  EXPECT_THAT(error_of(flag_values),
              HasSubstr("--join, --nodes, --node are given without --secret"));
  EXPECT_THAT(error_of({.join = {}, .nodes = "2", .node = {}, .secret = {}}),
              HasSubstr("--nodes is given without --join, --node, --secret"));
}

TEST(NodeOptions, SayWhatIsWrong) {
  const auto error_with = [](auto change) {
    NodeFlagValues flag_values = usual_flag_values();
    change(flag_values);
    return error_of(flag_values);
  };
  EXPECT_THAT(error_with([](NodeFlagValues& flag_values) { flag_values.node = "2"; }),
              HasSubstr("--node is 2, but the job has 2 nodes, numbered from 0 to 1"));
  EXPECT_THAT(error_with([](NodeFlagValues& flag_values) { flag_values.node = "-1"; }),
              HasSubstr("--node is \"-1\"; it must be a whole number"));
  EXPECT_THAT(error_with([](NodeFlagValues& flag_values) { flag_values.nodes = "0"; }),
              HasSubstr("from 1 to 4096"));
  EXPECT_THAT(error_with([](NodeFlagValues& flag_values) { flag_values.nodes = "many"; }),
              HasSubstr("\"many\""));
  EXPECT_THAT(error_with([](NodeFlagValues& flag_values) { flag_values.join = "fox"; }),
              HasSubstr("--join \"fox\": the port is missing"));
  EXPECT_THAT(error_with([](NodeFlagValues& flag_values) { flag_values.secret = ""; }),
              HasSubstr("`farandole secret FILE` makes one"));
}

}  // namespace
}  // namespace farandole
