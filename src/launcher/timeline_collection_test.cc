#include "launcher/timeline_collection.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "nodes/node_link_in_test.h"
#include "timeline/trace_line_in_test.h"

namespace farandole {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TimePoint kJobStart{seconds(1000)};

// The launcher of one of three nodes with 2, 1 and 1 workers.
struct Node {
  Node(int node, const std::string& path, std::size_t bytes_max = 1 << 20)
      : collection({.node = node, .workers = {2, 1, 1}}, link, {path, bytes_max},
                   [this](const std::string& line) { lines.push_back(line); }) {}

  NodeLinkInTest link;
  std::vector<std::string> lines;
  TimelineCollection collection;
};

class TimelineCollectionTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(int node) const { return format_text("{}/{}.json", folder_, node); }
  static void write(const std::string& path, const std::string& lines,
                    const std::string& job = "job") {
    auto file = TraceFile::open(path, {.job = job});
    ASSERT_EQ(file.status(), Status());
    ASSERT_EQ(file->append(lines), Status());
  }
  static std::string read(const std::string& path, int first_rank = 0, int ranks = 4) {
    auto reader = TraceReader::open(path, "job", {first_rank, ranks});
    std::string text;
    while (reader.ok() && !reader->at_end()) text += reader->next().value();
    return text;
  }
  static void deliver(int node, const NodeMessage& message, const std::vector<Node*>& others) {
    for (std::size_t i = 0; i < others.size(); ++i)
      if (node < 0 || node == static_cast<int>(i) + 1)
        others[i]->collection.handle(message, kJobStart);
  }
  // Carries the messages between node 0 and the other nodes until no more messages arrive. Returns
  // how many pieces have arrived.
  static int deliver_all(Node& node_0, const std::vector<Node*>& others) {
    int pieces = 0;
    while (!node_0.link.sent_messages.empty()) {
      for (const auto& [node, message] : std::exchange(node_0.link.sent_messages, {}))
        deliver(node, message, others);
      for (Node* other : others)
        for (const auto& [node, message] : std::exchange(other->link.sent_messages, {})) {
          pieces += std::holds_alternative<TimelinePiece>(message) ? 1 : 0;
          node_0.collection.handle(message, kJobStart);
        }
    }
    return pieces;
  }

  std::string folder_ = "/tmp/farandole-collection-XXXXXX";
};

TEST_F(TimelineCollectionTest, OnlyNodeZeroSaysThatNothingIsCollected) {
  const Node node_0(0, path(0));
  node_0.collection.warn_not_collected("not all nodes have ended");
  EXPECT_THAT(node_0.lines,
              ElementsAre("the timelines of the other nodes stay in their own files: not "
                          "all nodes have ended"));
  const Node without_timeline(0, "");
  const Node node_1(1, path(1));
  without_timeline.collection.warn_not_collected("not all nodes have ended");
  node_1.collection.warn_not_collected("not all nodes have ended");
  EXPECT_THAT(without_timeline.lines, IsEmpty());
  EXPECT_THAT(node_1.lines, IsEmpty());
}

TEST_F(TimelineCollectionTest, NodeZeroGetsTheEventsOfAllNodes) {
  write(path(0), trace_line_of(0) + trace_line_of(1));
  write(path(1), trace_line_of(2) + trace_line_of(2, "y"));
  write(path(2), trace_line_of(3));
  Node node_0(0, path(0));
  Node node_1(1, path(1));
  Node node_2(2, path(2));
  node_0.collection.begin({.job = "job"}, kJobStart);
  EXPECT_FALSE(node_0.collection.is_over());
  deliver_all(node_0, {&node_1, &node_2});
  for (Node* node : {&node_0, &node_1, &node_2}) {
    node->collection.begin({}, kJobStart);
    EXPECT_TRUE(node->collection.is_over());
    EXPECT_THAT(node->lines, IsEmpty());
  }
  EXPECT_EQ(read(path(0)), trace_line_of(0) + trace_line_of(1) + trace_line_of(2) +
                               trace_line_of(2, "y") + trace_line_of(3));
  EXPECT_EQ(read(path(1)), trace_line_of(2) + trace_line_of(2, "y")) << "the file stays";
}

TEST_F(TimelineCollectionTest, LongFilesArriveInPieces) {
  std::string lines = trace_line_of(2, std::string(150'000, 'z'));
  for (int i = 0; i < 20'000; ++i) lines += trace_line_of(2, std::to_string(i));
  write(path(0), trace_line_of(0));
  write(path(1), lines);
  Node node_0(0, path(0));
  Node node_1(1, path(1));
  Node node_2(2, "");
  node_0.collection.begin({.job = "job"}, kJobStart);
  EXPECT_GE(deliver_all(node_0, {&node_1, &node_2}), 1 + static_cast<int>(lines.size() / 60'000));
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_EQ(read(path(0), 2, 1), lines);
}

TEST_F(TimelineCollectionTest, ASenderWaitsForRequests) {
  write(path(1), trace_line_of(2, std::string(200'000, 'z')));
  Node node_1(1, path(1));
  node_1.collection.begin({}, kJobStart);
  EXPECT_THAT(node_1.link.sent_messages, IsEmpty());
  node_1.collection.handle(TimelineWanted{2, "job", "{}"}, kJobStart);
  EXPECT_THAT(node_1.link.sent_messages, SizeIs(2));
  node_1.collection.handle(TimelineWanted{1000, "", ""}, kJobStart);
  EXPECT_THAT(node_1.link.sent_messages, SizeIs(4 + 1));
  EXPECT_EQ(node_1.link.sent_messages.back().second, (NodeMessage(TimelineEnd{1, ""})));
  node_1.collection.handle(TimelineWanted{1, "", ""}, kJobStart);
  EXPECT_THAT(node_1.link.sent_messages, SizeIs(4 + 1));
  EXPECT_FALSE(node_1.collection.is_over());
  node_1.collection.handle(TimelineWanted{}, kJobStart);
  EXPECT_TRUE(node_1.collection.is_over());
}

TEST_F(TimelineCollectionTest, ASharedFileGetsEachEventOnce) {
  write(path(0),
        trace_line_of(2) + trace_line_of(0) + trace_line_of(1));  // node 1 has the file, too
  write(path(1), trace_line_of(3));
  Node node_0(0, path(0));
  Node node_1(1, path(0));
  Node node_2(2, path(1));
  node_0.collection.begin({.job = "job"}, kJobStart);
  deliver_all(node_0, {&node_1, &node_2});
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_EQ(read(path(0)),
            trace_line_of(2) + trace_line_of(0) + trace_line_of(1) + trace_line_of(3));
  // Nodes 1 and 2 share a file: each of these nodes sends only the events of its own ranks.
  write(folder_ + "/a", trace_line_of(0));
  write(folder_ + "/b", trace_line_of(3) + trace_line_of(2) + trace_line_of(3, "y"));
  Node first(0, folder_ + "/a");
  Node second(1, folder_ + "/b");
  Node third(2, folder_ + "/b");
  first.collection.begin({.job = "job"}, kJobStart);
  deliver_all(first, {&second, &third});
  EXPECT_EQ(read(folder_ + "/a"),
            trace_line_of(0) + trace_line_of(2) + trace_line_of(3) + trace_line_of(3, "y"));
}

TEST_F(TimelineCollectionTest, WithoutATimelineNoEventsAreCollected) {
  Node without_path(0, "");
  without_path.collection.begin({.job = "job"}, kJobStart);
  Node without_job(0, path(0));
  without_job.collection.begin({}, kJobStart);
  for (Node* node : {&without_path, &without_job}) {
    EXPECT_TRUE(node->collection.is_over());
    EXPECT_THAT(node->link.sent_messages,
                ElementsAre(std::pair(-1, NodeMessage(TimelineWanted{}))));
    EXPECT_THAT(node->lines, IsEmpty());
  }
}

// Node 0 of an elastic job with a driver.
TEST_F(TimelineCollectionTest, NodeZeroWithoutWorkersMakesTheFile) {
  write(path(1), trace_line_of(0));
  NodeLinkInTest link;
  const NodeLayout layout{.node = 0, .workers = {0, 1}};
  std::vector<std::string> lines;
  const auto show = [&](const std::string& line) { lines.push_back(line); };
  TimelineCollection node_0(layout, link, {path(0), 1 << 20}, show);
  node_0.begin({.job = "job"}, kJobStart);
  EXPECT_FALSE(node_0.is_over());
  node_0.handle(TimelinePiece{.node = 1, .text = trace_line_of(0)}, kJobStart);
  node_0.handle(TimelineEnd{.node = 1, .why = ""}, kJobStart);
  EXPECT_TRUE(node_0.is_over());
  EXPECT_EQ(read(path(0)), trace_line_of(0));
  EXPECT_THAT(lines, IsEmpty());
  TimelineCollection new_launcher_collection(layout, link, {path(2), 1 << 20}, show);
  new_launcher_collection.begin({}, kJobStart);
  EXPECT_TRUE(new_launcher_collection.is_over());
  EXPECT_THAT(lines, ElementsAre("the timelines of the other nodes stay in their own files: no "
                                 "group was formed since this launcher has started"));
}

TEST_F(TimelineCollectionTest, NodeZeroSaysThatItsOwnFileIsMissing) {
  Node node_0(0, path(0));
  node_0.collection.begin({.job = "job"}, kJobStart);
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_THAT(node_0.lines,
              ElementsAre("the timelines of the other nodes stay in their own files: the timeline "
                          "cannot be written to `" +
                          path(0) +
                          "`: No such file or directory; if the program changes its working "
                          "directory, give --timeline an absolute path"));
  EXPECT_FALSE(std::filesystem::exists(path(0)));
}

TEST_F(TimelineCollectionTest, WarnsAboutNodesThatCannotSend) {
  write(path(0), trace_line_of(0));
  write(path(1), trace_line_of(2), "another job");
  Node node_0(0, path(0));
  Node node_1(1, path(1));
  Node node_2(2, "");  // node 2 has no timeline
  node_0.collection.begin({.job = "job"}, kJobStart);
  deliver_all(node_0, {&node_1, &node_2});
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_THAT(node_0.lines, ElementsAre("the timeline `" + path(0) +
                                        "` may lack events of node 1: the timeline `" + path(1) +
                                        "` cannot be read: it is not the timeline of this job"));
}

TEST_F(TimelineCollectionTest, WarnsAboutNodesThatAreGoneOrSilent) {
  write(path(0), trace_line_of(0));
  Node node_0(0, path(0));
  node_0.collection.begin({.job = "job"}, kJobStart);
  EXPECT_EQ(node_0.collection.deadline(), kJobStart + seconds(5));
  node_0.collection.handle_deadline(kJobStart + seconds(5));
  EXPECT_THAT(node_0.lines,
              ElementsAre("collecting the timelines of the other nodes; Ctrl-C ends this"));
  node_0.link.disconnected_nodes = {1};
  node_0.collection.handle_deadline(kJobStart + seconds(6));
  EXPECT_FALSE(node_0.collection.is_over());
  node_0.collection.handle(TimelinePiece{2, trace_line_of(3)}, kJobStart + seconds(20));
  EXPECT_EQ(node_0.collection.deadline(), kJobStart + seconds(50));
  node_0.collection.handle_deadline(kJobStart + seconds(49));
  EXPECT_FALSE(node_0.collection.is_over());
  node_0.collection.handle_deadline(kJobStart + seconds(50));
  EXPECT_TRUE(node_0.collection.is_over());
  const std::string warning_beginning = "the timeline `" + path(0) + "` may lack events of ";
  EXPECT_THAT(node_0.lines,
              ElementsAre(::testing::_, warning_beginning + "node 1: its launcher has ended",
                          warning_beginning + "node 2: its launcher has sent nothing for 30 s"));
  EXPECT_EQ(read(path(0)), trace_line_of(0) + trace_line_of(3));
}

TEST_F(TimelineCollectionTest, ASenderDoesNotWaitForever) {
  Node silent_node(1, path(1));
  silent_node.collection.begin({}, kJobStart);
  EXPECT_EQ(silent_node.collection.deadline(), kJobStart + seconds(30));
  silent_node.collection.handle_deadline(kJobStart + seconds(29));
  EXPECT_FALSE(silent_node.collection.is_over());
  silent_node.collection.handle_deadline(kJobStart + seconds(30));
  EXPECT_TRUE(silent_node.collection.is_over());
  Node lost_node(1, path(1));
  lost_node.link.disconnected_nodes = {0};
  lost_node.collection.begin({}, kJobStart);
  EXPECT_TRUE(lost_node.collection.is_over());
}

TEST_F(TimelineCollectionTest, WarnsOnceAboutTheSameFailureOfSeveralNodes) {
  write(path(0), trace_line_of(0));
  Node node_0(0, path(0));
  node_0.collection.begin({.job = "job"}, kJobStart);
  node_0.collection.give_up("SIGINT has ended the collection");
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_THAT(node_0.lines,
              ElementsAre("the timeline `" + path(0) +
                          "` may lack events of nodes 1, 2: SIGINT has ended the collection"));
}

TEST_F(TimelineCollectionTest, WarnsOnceAboutAnErrorOfTheFile) {
  write(path(0), trace_line_of(0));
  Node node_0(0, path(0));
  node_0.collection.begin({.job = "job"}, kJobStart);
  const Descriptor locking_descriptor(::open(path(0).c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock{.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1, .l_pid = 0};
  ASSERT_EQ(::fcntl(locking_descriptor.get(), F_OFD_SETLK, &lock), 0);
  node_0.collection.handle(TimelinePiece{1, trace_line_of(2)}, kJobStart);
  node_0.collection.handle(TimelinePiece{2, trace_line_of(3)}, kJobStart);
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_THAT(node_0.lines,
              ElementsAre("the timeline `" + path(0) +
                          "` may lack events of nodes 1, 2: the timeline cannot be written to `" +
                          path(0) + "`: another process writes to it"));
}

TEST_F(TimelineCollectionTest, TheFileHasALimit) {
  constexpr std::size_t kBytesMax = 100'000;
  write(path(0), trace_line_of(0));
  Node node_0(0, path(0), kBytesMax);
  node_0.collection.begin({.job = "job"}, kJobStart);
  std::string lines;
  while (lines.size() < 50'000) lines += trace_line_of(2);
  for (int i = 0; i < 100; ++i) node_0.collection.handle(TimelinePiece{1, lines}, kJobStart);
  node_0.collection.handle(TimelineEnd{2, ""}, kJobStart);
  EXPECT_TRUE(node_0.collection.is_over());
  EXPECT_THAT(node_0.lines,
              ElementsAre(HasSubstr("may lack events of node 1: the file would become "
                                    "longer than --timeline-bytes allows")));
  EXPECT_LT(std::filesystem::file_size(path(0)), 2'000'000U);
}

TEST_F(TimelineCollectionTest, OnlyLinesOfTheSendersRanksAreWritten) {
  write(path(0), trace_line_of(0));
  const std::string original_text = read(path(0));
  for (const std::string& text :
       {trace_line_of(0), trace_line_of(2) + trace_line_of(3), std::string("nonsense\n"),
        std::string("\n"), std::string(300'000, 'z'), "]\n" + trace_line_of(2)}) {
    Node node_0(0, path(0));
    node_0.collection.begin({.job = "job"}, kJobStart);
    node_0.collection.handle(TimelinePiece{1, text}, kJobStart);
    node_0.collection.handle(TimelinePiece{1, trace_line_of(2)}, kJobStart);
    node_0.collection.handle(TimelinePiece{9, trace_line_of(2)}, kJobStart);
    node_0.collection.handle(TimelineEnd{9, "no such node"}, kJobStart);
    node_0.collection.handle(TimelineEnd{2, ""}, kJobStart);
    EXPECT_TRUE(node_0.collection.is_over());
    EXPECT_THAT(node_0.lines, ElementsAre(HasSubstr("may lack events of node 1: its launcher has "
                                                    "sent a text that is not the timeline")));
    EXPECT_EQ(read(path(0)), original_text);
  }
}

}  // namespace
}  // namespace farandole
