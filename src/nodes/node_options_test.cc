#include "nodes/node_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

using ::testing::HasSubstr;

NodeFlagValues usual_flag_values() {
  return {.join = "10.0.0.1:4711", .nodes = "2", .node = "1", .secret = "file"};
}

std::string error_of(const NodeFlagValues& words) {
  return parse_node_options(words).status().message();
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
  NodeFlagValues words = usual_flag_values();
  words.secret.reset();
  EXPECT_THAT(error_of(words), HasSubstr("--join, --nodes, --node are given without --secret"));
  EXPECT_THAT(error_of({.join = {}, .nodes = "2", .node = {}, .secret = {}}),
              HasSubstr("--nodes is given without --join, --node, --secret"));
}

TEST(NodeOptions, SayWhatIsWrong) {
  const auto with = [](auto change) {
    NodeFlagValues words = usual_flag_values();
    change(words);
    return error_of(words);
  };
  EXPECT_THAT(with([](NodeFlagValues& words) { words.node = "2"; }),
              HasSubstr("--node is 2, but the job has 2 nodes, numbered from 0 to 1"));
  EXPECT_THAT(with([](NodeFlagValues& words) { words.node = "-1"; }),
              HasSubstr("--node is \"-1\"; it must be a whole number"));
  EXPECT_THAT(with([](NodeFlagValues& words) { words.nodes = "0"; }), HasSubstr("from 1 to 4096"));
  EXPECT_THAT(with([](NodeFlagValues& words) { words.nodes = "many"; }), HasSubstr("\"many\""));
  EXPECT_THAT(with([](NodeFlagValues& words) { words.join = "fox"; }),
              HasSubstr("--join \"fox\": the port is missing"));
  EXPECT_THAT(with([](NodeFlagValues& words) { words.secret = ""; }),
              HasSubstr("`farandole secret FILE` makes one"));
}

}  // namespace
}  // namespace farandole
