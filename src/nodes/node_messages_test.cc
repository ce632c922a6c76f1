#include "nodes/node_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "network/frame.h"

namespace farandole {
namespace {

std::vector<NodeMessage> all_messages() {
  return {Hello{1, 2, 3, "hen"},
          Hello{1, 2, 2, "hen", "1.0", {8, 9}, true},
          NodeRejection{"no"},
          MissingNodes{{1, 3}},
          Start{{2, 1}, 4711},
          Start{{0, 1}, 4711, "10.0.0.3", 4712, {8, 9}, {"", "10.0.0.2"}},
          WorkerExit{7, "gone", true},
          FailedNode{1, {"why", std::nullopt, std::nullopt}},
          FailedNode{1, {"why", 3, 0, 15, 2, 4}},
          NodeEnded{137, {"one", "two"}},
          JobOver{3, 2},
          WorkersWanted{},
          WorkerReport{3, std::string("a\0b", 3)},
          StacksWanted{{5, 6}},
          StackReport{{"one", "two"}},
          TimelineWanted{8, "1.2", "{}"},
          TimelinePiece{2, "{},\n"},
          TimelineEnd{2, "why"},
          WorkerStop{3, true},
          WorkerStart{3, 8},
          WorkerKill{8, true},
          GroupFormed{2, {0, 3}, {0, 8}},
          NoMoreWorkers{},
          NodeLeaves{3},
          NodeState{1, {2, {0, 3}, {0, 8}, 1}, {3, 4}, {8, 9}, {4}, true, true},
          HeartbeatMessage{},
          MemberLost{2, 1}};
}

TEST(NodeMessages, SurviveTheTrip) {
  for (const NodeMessage& message : all_messages()) {
    const auto decoded = decode_node_message(encode(message));
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(*decoded, message);
  }
}

TEST(NodeMessages, CutOrExtendedBytesAreRejected) {
  for (const NodeMessage& message : all_messages()) {
    Bytes bytes = encode(message);
    for (std::size_t count = 0; count < bytes.size(); ++count)
      EXPECT_FALSE(decode_node_message(std::span(bytes).first(count)).has_value());
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_node_message(bytes).has_value());
  }
}

TEST(NodeMessages, ALongReportIsCutInItsMiddle) {
  const std::vector<std::string> box{"the first line", "the last line"};
  EXPECT_EQ(make_node_ended(3, box), (NodeEnded{3, box}));
  for (const std::size_t bytes : {0U, 1U, 100U, 30'000U, 70'000U}) {
    std::vector<std::string> report(bytes < 1000 ? 20'000 : 10, std::string(bytes, 'x'));
    report.front() = box.front();
    report.back() = box.back();
    const NodeEnded ended = make_node_ended(3, report);
    EXPECT_LE(encode(ended).size(), payload_bytes_max(FrameType::kControl));
    EXPECT_EQ(ended.report.front(), box.front());
    EXPECT_EQ(ended.report.back(), box.back());
    const std::size_t missing = report.size() - (ended.report.size() - 1);
    EXPECT_THAT(ended.report, ::testing::Contains("… lines are missing here, because the report is "
                                                  "too long: " +
                                                  std::to_string(missing)));
  }
}

TEST(NodeMessages, RandomBytesAreDecodedSafely) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes(random() % 40);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (!bytes.empty()) bytes.front() = static_cast<std::byte>(random() % 24);
    if (const auto message = decode_node_message(bytes); message.has_value()) {
      EXPECT_TRUE(decode_node_message(encode(*message)).has_value());
    }
  }
}

}  // namespace
}  // namespace farandole
