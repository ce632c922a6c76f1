#include "nodes/node_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <list>

#include "network/tcp/job_in_test.h"
#include "nodes/first_node.h"
#include "nodes/node_channel.h"
#include "nodes/other_node.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// This cannot be a name, so the test asks no name server.
constexpr const char* kInvalidName = "nobody..invalid";

// A launcher in a test: the link, everything that the link has reported so far, and its error.
struct Launcher {
  std::unique_ptr<NodeLink> link;
  std::vector<std::string> notices{};
  std::vector<std::string> failures{};  // the `why` of each failure
  std::optional<FailedNode> last_failure{};
  std::vector<NodeEnd> ends{};
  std::vector<NodeChange> changes{};
  std::vector<WorkerExit> exits{};
  std::vector<std::unique_ptr<Connection>> workers{};
  std::vector<NodeMessage> messages{};
  bool expects_no_more_nodes = false;  // no lost node is expected any more
  int node_0_returns = 0;              // how often node 0 was found again
  Status error{};

  bool has_started() const { return link->start_message().has_value(); }
  void advance(TimePoint now) {
    if (!error.ok()) return;
    auto news = link->advance(now);
    error = news.status();
    if (!news.ok()) return;
    std::ranges::move(news->notices, std::back_inserter(notices));
    for (const FailedNode& failed_node : news->failures) {
      failures.push_back(failed_node.failure.why);
      last_failure = failed_node;
    }
    std::ranges::move(news->ends, std::back_inserter(ends));
    std::ranges::move(news->changes, std::back_inserter(changes));
    std::ranges::move(news->exits, std::back_inserter(exits));
    std::ranges::move(news->workers, std::back_inserter(workers));
    std::ranges::move(news->messages, std::back_inserter(messages));
    expects_no_more_nodes = expects_no_more_nodes || news->no_more_nodes_expected;
    node_0_returns += news->node_0_is_back ? 1 : 0;
  }
};

class NodeLinks : public ::testing::Test {
 protected:
  static std::uint16_t free_port(const TlsContext& context) {
    const auto listener =
        TcpListener::open(context, {.addresses = {*SocketAddress::parse_ip("127.0.0.1")}});
    return (*listener)->addresses().front().port;
  }

  NodeOptions options(int node, int nodes, int workers) const {
    return {.endpoint = {endpoint_host_, port_},
            .nodes = nodes,
            .node = node,
            .workers = workers,
            .host = "host" + std::to_string(node),
            .master_port = 99U + static_cast<std::uint32_t>(node),
            .start_timeout = std::chrono::seconds(60)};
  }
  std::string endpoint_text() const { return Endpoint{endpoint_host_, port_}.text(); }
  Launcher& add_first_node(int nodes, int workers = 1) {
    auto new_link = FirstNode::create(*context_, options(0, nodes, workers), now());
    return launchers_.emplace_back(Launcher{.link = *std::move(new_link)});
  }
  Launcher& add_other_node(int node, int nodes, int workers = 1,
                           const TlsContext* context = nullptr) {
    auto new_link = OtherNode::create(context != nullptr ? *context : *context_,
                                      options(node, nodes, workers), now());
    return launchers_.emplace_back(Launcher{.link = *std::move(new_link)});
  }
  TimePoint now() const { return std::chrono::steady_clock::now() + skipped_time_; }
  void skip_time(Duration time) { skipped_time_ += time; }
  void advance() {
    for (Launcher& launcher : launchers_)
      if (launcher.link != nullptr) launcher.advance(now());
  }
  void run_until(const std::function<bool()>& done) {
    const TimePoint test_deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), test_deadline);
      advance();
      ::poll(nullptr, 0, 1);
    }
  }
  void run_until_started() {
    run_until([&] { return std::ranges::all_of(launchers_, &Launcher::has_started); });
  }

  std::unique_ptr<TlsContext> context_ = context_of('a');
  std::string endpoint_host_ = "127.0.0.1";
  std::uint16_t port_ = free_port(*context_);
  std::list<Launcher> launchers_;
  Duration skipped_time_{};
};

TEST_F(NodeLinks, StartWhenAllNodesHaveJoined) {
  Launcher& node_1 = add_other_node(1, 3, 4);
  advance();  // node 0 does not listen yet
  Launcher& node_0 = add_first_node(3, 2);
  run_until([&] { return node_0.notices.size() == 2; });
  EXPECT_THAT(node_0.notices.front(), HasSubstr("waiting for nodes 1, 2 of 3 at 127.0.0.1:"));
  EXPECT_THAT(node_0.notices.back(), HasSubstr("waiting for node 2 of 3"));
  EXPECT_FALSE(node_0.has_started());
  Launcher& node_2 = add_other_node(2, 3, 1);
  run_until_started();
  for (const Launcher* launcher : {&node_0, &node_1, &node_2}) {
    EXPECT_THAT(launcher->link->start_message()->workers, ElementsAre(2, 4, 1));
    EXPECT_EQ(launcher->link->start_message()->master_port, 99U);
  }
  EXPECT_THAT(node_1.notices.front(), HasSubstr("waiting for node 0 of 3 at 127.0.0.1:"));
  EXPECT_THAT(node_1.notices, ::testing::Contains("waiting for node 2 of 3"));
}

TEST_F(NodeLinks, TheMasterPortIsOnTheFirstNodeThatHasWorkers) {
  const Launcher& node_0 = add_first_node(2, 0);
  const Launcher& node_1 = add_other_node(1, 2);
  run_until_started();
  for (const Launcher* launcher : {&node_0, &node_1}) {
    EXPECT_THAT(launcher->link->start_message()->workers, ElementsAre(0, 1));
    EXPECT_EQ(launcher->link->start_message()->master_port, 100U);
    EXPECT_EQ(launcher->link->start_message()->master_address, "127.0.0.1");
  }
}

TEST_F(NodeLinks, TellWhereTheServersOfFrameworksListen) {
  const auto with_ports = [this](int node, int workers, std::vector<std::uint32_t> ports) {
    NodeOptions node_options = options(node, 2, workers);
    node_options.tensorflow_ports = std::move(ports);
    node_options.uses_jax = true;
    node_options.jax_port = node == 0 ? 6U : 0U;
    return node_options;
  };
  launchers_.push_back({.link = *FirstNode::create(*context_, with_ports(0, 2, {7, 8}), now())});
  launchers_.push_back({.link = *OtherNode::create(*context_, with_ports(1, 1, {9}), now())});
  run_until_started();
  for (const Launcher& launcher : launchers_) {
    const Start& start = *launcher.link->start_message();
    EXPECT_EQ(start.jax_port, 6U);
    EXPECT_THAT(start.tensorflow_ports, ElementsAre(7, 8, 9));
    EXPECT_THAT(start.addresses, ElementsAre("", "127.0.0.1"));
  }
}

TEST_F(NodeLinks, DifferentFlagsEndAllNodes) {
  Launcher& node_0 = add_first_node(2);
  NodeOptions node_options = options(1, 2, 1);
  node_options.uses_jax = true;
  Launcher& node_1 =
      launchers_.emplace_back(Launcher{.link = *OtherNode::create(*context_, node_options, now())});
  run_until([&] { return !node_0.error.ok() && !node_1.error.ok(); });
  EXPECT_EQ(node_0.error, node_1.error);
  EXPECT_EQ(node_0.error,
            Status::fix_call("node 1 on host1 was started with --jax, but node 0 on host0 without "
                             "it; start all nodes with the same flags"));
}

TEST_F(NodeLinks, EndTogether) {
  Launcher& node_0 = add_first_node(2);
  Launcher& node_1 = add_other_node(1, 2);
  run_until_started();
  node_1.link->report_exit({.rank = 1, .how_it_ended = "rank 1 has exited"});
  node_1.link->report_end(0, {});
  run_until([&] { return !node_0.exits.empty(); });
  EXPECT_EQ(node_0.exits.front(), (WorkerExit{1, "rank 1 has exited"}));
  EXPECT_FALSE(node_0.link->outcome().has_value());
  node_0.link->report_end(0, {});
  EXPECT_EQ(node_0.link->outcome(), true);
  EXPECT_FALSE(node_1.link->outcome().has_value());
  node_0.link->tell(JobOver{0});
  run_until([&] { return node_1.link->outcome().has_value(); });
  EXPECT_EQ(node_1.link->outcome(), true);
  EXPECT_EQ(node_1.link->job_over(), JobOver{0});
  EXPECT_TRUE(node_0.failures.empty());
}

TEST_F(NodeLinks, StayConnectedAfterTheEnd) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  Launcher& node_2 = add_other_node(2, 3);
  run_until_started();
  for (const Launcher& launcher : launchers_) launcher.link->report_end(0, {});
  run_until([&] { return node_0.link->outcome().has_value(); });
  node_0.link->tell(JobOver{0});
  run_until([&] { return node_1.link->outcome() && node_2.link->outcome(); });
  node_0.link->tell(TimelineWanted{8, "job", "{}"});
  node_0.link->tell_node(2, TimelineWanted{1, "", ""});
  run_until([&] { return node_1.messages.size() == 1 && node_2.messages.size() == 2; });
  EXPECT_EQ(node_2.messages.back(), (NodeMessage(TimelineWanted{1, "", ""})));
  node_1.link->tell(TimelinePiece{2, "of another node"});
  node_1.link->tell(TimelineEnd{2, "of another node"});
  node_1.link->tell(TimelinePiece{1, "text"});
  node_1.link->tell(TimelineEnd{1, "why"});
  run_until([&] { return node_0.messages.size() == 2; });
  EXPECT_THAT(node_0.messages, ElementsAre(NodeMessage(TimelinePiece{1, "text"}),
                                           NodeMessage(TimelineEnd{1, "why"})));
  EXPECT_EQ(node_1.messages.size(), 1U);
  EXPECT_TRUE(node_0.link->is_connected(1));
  EXPECT_TRUE(node_2.link->is_connected(0));
  node_1.link.reset();
  run_until([&] { return !node_0.link->is_connected(1); });
  EXPECT_TRUE(node_0.link->is_connected(2));
  node_0.link.reset();
  run_until([&] { return !node_2.link->is_connected(0); });
  EXPECT_TRUE(node_2.failures.empty());
  EXPECT_FALSE(node_2.link->has_lost_node_0());
  EXPECT_EQ(node_2.link->outcome(), true);
}

TEST_F(NodeLinks, SendMoreThanTheKernelBuffers) {
  constexpr std::size_t kPieces = 200;
  Launcher& node_0 = add_first_node(2);
  Launcher& node_1 = add_other_node(1, 2);
  run_until_started();
  for (std::size_t i = 0; i < kPieces; ++i)
    node_1.link->tell(TimelinePiece{1, std::string(60'000, static_cast<char>('a' + i % 26))});
  run_until([&] { return node_0.messages.size() == kPieces; });
  for (std::size_t i = 0; i < kPieces; ++i)
    EXPECT_EQ(std::get<TimelinePiece>(node_0.messages[i]).text.front(),
              static_cast<char>('a' + i % 26));
}

TEST_F(NodeLinks, ALongReportIsCut) {
  Launcher& node_0 = add_first_node(2);
  Launcher& node_1 = add_other_node(1, 2);
  run_until_started();
  node_1.link->report_end(3, std::vector<std::string>(1000, std::string(100, 'x')));
  run_until([&] { return !node_0.ends.empty(); });
  EXPECT_EQ(node_0.ends.front().exit_code, 3);
  EXPECT_THAT(node_0.ends.front().report, ::testing::Contains(HasSubstr("lines are missing here")));
}

TEST_F(NodeLinks, ReportEachFailureOnce) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  Launcher& node_2 = add_other_node(2, 3);
  run_until_started();
  node_1.link->report_failing({.why = "rank 1 exited with code 3", .rank = 1, .blamed_rank = 0});
  node_1.link->report_end(3, {"a box\x1b", "of lines"});
  run_until([&] { return !node_2.failures.empty() && !node_0.failures.empty(); });
  node_0.link->report_end(0, {});
  node_2.link->report_end(1, {});
  run_until([&] { return node_0.link->outcome().has_value(); });
  EXPECT_EQ(node_0.link->outcome(), false);
  node_0.link->tell(JobOver{3});
  run_until([&] { return node_1.link->outcome() && node_2.link->outcome(); });
  EXPECT_THAT(node_0.failures,
              ElementsAre("node 1 (host1): rank 1 exited with code 3", HasSubstr("node 2")));
  EXPECT_THAT(node_2.failures, ElementsAre("node 1 (host1): rank 1 exited with code 3"));
  EXPECT_EQ(node_2.last_failure->node, 1U);
  EXPECT_EQ(node_2.last_failure->failure.rank, 1U);
  EXPECT_EQ(node_2.last_failure->failure.blamed_rank, 0U);
  for (const Launcher* launcher : {&node_1, &node_2}) {
    EXPECT_EQ(launcher->link->outcome(), false);
    EXPECT_EQ(launcher->link->job_over(), JobOver{3});
  }
  ASSERT_EQ(node_0.ends.size(), 2U);
  EXPECT_EQ(node_0.ends.front().node, 1);
  EXPECT_EQ(node_0.ends.front().exit_code, 3);
  EXPECT_THAT(node_0.ends.front().report, ElementsAre("a box\\x1b", "of lines"));
  EXPECT_TRUE(node_2.ends.empty());
}

TEST_F(NodeLinks, ReportALostLauncher) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  Launcher& node_2 = add_other_node(2, 3);
  run_until_started();
  node_1.link.reset();
  run_until([&] { return !node_2.failures.empty(); });
  EXPECT_THAT(node_0.failures, ElementsAre(HasSubstr("node 1 (host1) is gone")));
  EXPECT_THAT(node_2.failures, ElementsAre(HasSubstr("node 1 (host1) is gone")));
  node_0.link.reset();
  run_until([&] { return node_2.failures.size() == 2; });
  EXPECT_THAT(node_2.failures.back(), HasSubstr("the launcher of node 0 is gone"));
  EXPECT_TRUE(node_2.link->has_lost_node_0());
  EXPECT_EQ(node_2.link->outcome(), false);
}

TEST_F(NodeLinks, ANodeOfAnElasticJobMayComeBack) {
  const auto elastic_options = [this](int node) {
    NodeOptions node_options = options(node, 3, 1);
    node_options.is_elastic = true;
    return node_options;
  };
  Launcher& node_0 = launchers_.emplace_back(
      Launcher{.link = *FirstNode::create(*context_, elastic_options(0), now())});
  Launcher& node_1 = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, elastic_options(1), now())});
  Launcher& node_2 = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, elastic_options(2), now())});
  run_until_started();
  EXPECT_FALSE(node_1.link->start_message()->has_begun);
  node_1.link.reset();
  run_until([&] { return node_0.changes.size() == 1; });
  EXPECT_FALSE(node_0.changes[0].is_present);
  EXPECT_EQ(node_0.changes[0].node, 1);
  EXPECT_THAT(node_0.changes[0].why, HasSubstr("node 1 (host1) is gone"));
  EXPECT_FALSE(node_0.link->is_connected(1));

  Launcher& restarted_node = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, elastic_options(1), now())});
  run_until([&] { return restarted_node.has_started(); });
  EXPECT_TRUE(restarted_node.link->start_message()->has_begun);
  ASSERT_EQ(node_0.changes.size(), 2U);
  EXPECT_TRUE(node_0.changes[1].is_present);
  node_0.link->tell_node(1, WorkerStart{1, 3});
  node_0.link->tell(GroupFormed{2, {0, 2}, {0, 2}});
  run_until([&] { return restarted_node.messages.size() == 2 && !node_2.messages.empty(); });
  EXPECT_THAT(restarted_node.messages, ElementsAre(NodeMessage(WorkerStart{1, 3}),
                                                   NodeMessage(GroupFormed{2, {0, 2}, {0, 2}})));
  EXPECT_TRUE(node_0.failures.empty() && node_2.failures.empty());

  restarted_node.link->report_end(5, {"its box"});  // slot 1 is not in the group
  run_until([&] { return !node_0.ends.empty(); });
  EXPECT_EQ(node_0.ends[0].exit_code, 0);
  restarted_node.link.reset();
  for (Launcher* launcher : {&node_0, &node_2}) launcher->link->report_end(0, {});
  run_until([&] { return node_0.link->outcome().has_value(); });
  EXPECT_EQ(node_0.link->outcome(), true) << "the job has succeeded without node 1";
}

TEST(NodeEnds, TheFirstFailureIsTheFailureOfTheJob) {
  EXPECT_EQ(first_failure({}), std::nullopt);
  EXPECT_EQ(first_failure({{.node = 1, .exit_code = 0, .report = {}}}), std::nullopt);
  const auto failure = first_failure(
      {{.node = 2, .exit_code = 3, .report = {}}, {.node = 1, .exit_code = 4, .report = {}}});
  EXPECT_EQ(failure->node, 2U);
  EXPECT_EQ(failure->failure.why, "node 2 has ended with exit code 3");
}

// As in a job with a driver: node 0 chooses the port, and the driver sends it to the other node.
TEST_F(NodeLinks, ConnectAtAPortThatNode0HasChosen) {
  NodeOptions node_0_options = options(0, 2, 1);
  node_0_options.endpoint = {"hen", 0};
  node_0_options.listen_choice =
      ListenChoice{.interfaces = {.use = {"127.0.0.1", "::1"}, .avoid = {}}, .ports = {}};
  Launcher& node_0 = launchers_.emplace_back(
      Launcher{.link = *FirstNode::create(*context_, node_0_options, now())});
  EXPECT_TRUE(node_0.link->listening_addresses().empty());
  run_until([&] { return !node_0.link->listening_addresses().empty(); });
  const auto addresses = node_0.link->listening_addresses();
  EXPECT_GT(addresses.front().port, 0);
  EXPECT_TRUE(node_0.notices.empty());
  skip_time(std::chrono::seconds(10));
  run_until([&] { return !node_0.notices.empty(); });
  EXPECT_THAT(node_0.notices.front(), HasSubstr("at hen:" + std::to_string(addresses[0].port)));
  NodeOptions node_1_options = options(1, 2, 1);
  node_1_options.endpoint = {kInvalidName, 0};  // this name is never looked up
  node_1_options.addresses = addresses;
  Launcher& node_1 = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, node_1_options, now())});
  EXPECT_TRUE(node_1.link->listening_addresses().empty());
  run_until_started();
  EXPECT_EQ(node_0.link->endpoint().text(), addresses.front().text());
  EXPECT_THAT(addresses,
              ::testing::Contains(*SocketAddress::parse(node_1.link->endpoint().text())));
}

TEST_F(NodeLinks, NameTheAddressesAtWhichNode0WasNotReached) {
  NodeOptions node_1_options = options(1, 2, 1);
  node_1_options.endpoint = {"hen", 0};
  node_1_options.addresses = {*SocketAddress::parse("127.0.0.1:1")};
  Launcher& node_1 = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, node_1_options, now())});
  run_until([&] { return !node_1.notices.empty(); });
  EXPECT_EQ(node_1.notices.front(), "waiting for node 0 of 2 at hen (127.0.0.1:1)");
  skip_time(std::chrono::seconds(60));
  run_until([&] { return !node_1.error.ok(); });
  EXPECT_THAT(node_1.error.message(), AllOf(HasSubstr("was not reached at hen (127.0.0.1:1)"),
                                            HasSubstr("look for a firewall between the hosts")));
}

TEST_F(NodeLinks, RejectTheSecondLauncherOfANode) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  run_until([&] { return node_0.notices.size() == 2; });
  Launcher& second_launcher = add_other_node(1, 3);
  run_until([&] { return !second_launcher.error.ok(); });
  EXPECT_THAT(second_launcher.error.message(), HasSubstr("node 1 has already joined, on host1"));
  second_launcher.link.reset();
  launchers_.pop_back();
  add_other_node(2, 3);
  run_until_started();
  EXPECT_TRUE(node_1.error.ok());
}

TEST_F(NodeLinks, EndIfTheNumbersOfNodesDiffer) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  run_until([&] { return node_0.notices.size() == 2; });
  Launcher& node_2 = add_other_node(2, 4);
  run_until([&] { return !node_0.error.ok() && !node_1.error.ok() && !node_2.error.ok(); });
  for (const Launcher& launcher : launchers_)
    EXPECT_THAT(launcher.error.message(),
                HasSubstr("node 0 was started with --nodes 3, and node 2 on host2 with --nodes 4"));
}

TEST_F(NodeLinks, NameTheMissingNodesAtTheTimeout) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  run_until([&] { return node_0.notices.size() == 2; });
  skip_time(std::chrono::seconds(60));
  run_until([&] { return !node_0.error.ok() && !node_1.error.ok(); });
  for (const Launcher& launcher : launchers_)
    EXPECT_THAT(launcher.error.message(), HasSubstr("node 2 of 3 has not come to 127.0.0.1:"));
}

TEST_F(NodeLinks, NameTheMissingNodesEvenIfNodeZeroIsSilent) {
  Launcher& node_0 = add_first_node(3);
  Launcher& node_1 = add_other_node(1, 3);
  run_until([&] { return std::ranges::count(node_1.notices, "waiting for node 2 of 3") == 1; });
  skip_time(std::chrono::seconds(66));
  node_1.advance(now());
  EXPECT_EQ(node_1.error, Status::stop("node 2 of 3 did not come within 60 s (--start-timeout)"));
  EXPECT_TRUE(node_0.error.ok());
}

TEST_F(NodeLinks, NameNodeZeroAtTheTimeout) {
  Launcher& node_1 = add_other_node(1, 2);
  advance();
  skip_time(std::chrono::seconds(60));
  run_until([&] { return !node_1.error.ok(); });
  EXPECT_THAT(node_1.error.message(),
              HasSubstr("node 0 of 2 was not reached at " + endpoint_text() + " (this host)"));
}

TEST_F(NodeLinks, AnotherSecretIsAnErrorOnBothSides) {
  const auto wrong_context = context_of('b');
  Launcher& node_0 = add_first_node(2);
  Launcher& node_1 = add_other_node(1, 2, 1, wrong_context.get());
  run_until([&] { return !node_1.notices.empty() && node_0.notices.size() == 2; });
  EXPECT_THAT(node_0.notices.back(), HasSubstr("its file with the secret is different"));
  skip_time(std::chrono::seconds(11));
  run_until([&] { return !node_1.error.ok(); });
  EXPECT_THAT(node_1.error.message(), HasSubstr("the file with the secret must be the same"));
  skip_time(std::chrono::seconds(60));
  run_until([&] { return !node_0.error.ok(); });
  EXPECT_THAT(node_0.error.message(), HasSubstr("node 1 of 2 has not come"));
  EXPECT_THAT(node_0.error.message(), HasSubstr("connections were rejected"));
}

TEST_F(NodeLinks, NodeZeroMayBeStartedAgainBeforeTheStart) {
  Launcher& node_0 = add_first_node(3);
  add_other_node(1, 3);
  run_until([&] { return node_0.notices.size() == 2; });
  node_0.link.reset();
  launchers_.pop_front();
  add_first_node(3);
  add_other_node(2, 3);
  run_until_started();
}

// Node 0 has no workers, and a driver can replace its launcher.
class NodeLinksWithDriver : public NodeLinks {
 protected:
  NodeOptions elastic_job_options(int node) const {
    NodeOptions node_options = options(node, 3, node);
    node_options.is_elastic = true;
    if (node > 0) node_options.addresses = {address_of("127.0.0.1:0").with_port(port_)};
    return node_options;
  }
  Launcher& add_first_node_of_elastic_job(const std::optional<Replacement>& replaces) {
    NodeOptions node_options = elastic_job_options(0);
    node_options.listen_choice = ListenChoice{InterfaceChoice{{"lo"}}, {port_, port_}};
    if (replaces) node_options.addresses = {address_of("127.0.0.1:0").with_port(port_)};
    node_options.replaces = replaces;
    auto new_link = FirstNode::create(*context_, node_options, now());
    return launchers_.emplace_back(Launcher{.link = *std::move(new_link)});
  }
  void begin_job() {
    add_first_node_of_elastic_job({});
    for (const int node : {1, 2}) {
      auto new_link = OtherNode::create(*context_, elastic_job_options(node), now());
      launchers_.push_back(Launcher{.link = *std::move(new_link)});
    }
    run_until_started();
  }
  void lose_node_0() { launchers_.pop_front(); }
  Launcher& node_1() { return launchers_.front(); }  // call it after the loss of node 0's launcher
  void pass_time(Duration time, const Launcher* stopped);
  void advance_all_but(const Launcher* stopped);
};

TEST_F(NodeLinksWithDriver, TheOthersFindTheNewLauncherOfNodeZero) {
  begin_job();
  lose_node_0();
  node_1().link->report_end(3, {"why"});  // the new launcher of node 0 must get this report
  for (int i = 0; i < 20; ++i) advance();
  EXPECT_FALSE(node_1().link->outcome().has_value());
  Launcher& node_0 = add_first_node_of_elastic_job(
      Replacement{.number = 1, .workers = {0, 1, 2}, .nodes = {1, 2}});
  run_until([&] { return node_0.expects_no_more_nodes && node_0.ends.size() == 1; });
  EXPECT_THAT(node_0.link->start_message()->workers, ElementsAre(0, 1, 2));
  ASSERT_EQ(node_0.changes.size(), 2U);
  for (const NodeChange& change : node_0.changes)
    EXPECT_TRUE(change.is_present && change.has_begun);
  EXPECT_EQ(node_0.ends[0].exit_code, 3);
  run_until([&] {
    return node_1().node_0_returns == 1 && std::next(launchers_.begin())->node_0_returns;
  });
  const NodeState state{.node = 9, .slots = {0}, .numbers = {4}};
  node_1().link->tell(state);
  run_until([&] { return !node_0.messages.empty(); });
  EXPECT_EQ(std::get<NodeState>(node_0.messages[0]).node, 1U) << "that of the connection";
  EXPECT_FALSE(node_1().link->has_lost_node_0());
  EXPECT_TRUE(node_1().failures.empty());
}

TEST_F(NodeLinksWithDriver, ANodeThatComesTooLateIsRejected) {
  begin_job();
  lose_node_0();
  Launcher late_node = std::move(launchers_.back());
  launchers_.pop_back();
  Launcher& node_0 = add_first_node_of_elastic_job(
      Replacement{.number = 1, .workers = {0, 1, 2}, .nodes = {1, 2}});
  run_until([&] { return node_0.changes.size() == 1; });
  EXPECT_FALSE(node_0.expects_no_more_nodes);
  EXPECT_LE(node_0.link->deadline(), now() + kReplacementTimeout);
  skip_time(kReplacementTimeout);
  run_until([&] { return node_0.expects_no_more_nodes; });
  ASSERT_EQ(node_0.changes.size(), 2U) << "the driver must know that it is lost";
  EXPECT_EQ(node_0.changes[1].node, 2);
  EXPECT_FALSE(node_0.changes[1].is_present);
  run_until([&] {
    late_node.advance(now() - skipped_time_);  // a time before the limit of late_node
    return late_node.link->outcome().has_value();
  });
  EXPECT_EQ(late_node.link->outcome(), false);
  EXPECT_TRUE(late_node.link->has_lost_node_0());
  EXPECT_THAT(late_node.failures, ElementsAre(HasSubstr("the launcher of node 0 is gone: ")));
}

TEST_F(NodeLinksWithDriver, TheOthersWaitALimitedTimeForALostNodeZero) {
  begin_job();
  lose_node_0();
  run_until([&] { return !node_1().link->is_connected(0); });
  EXPECT_FALSE(node_1().link->outcome().has_value());
  skip_time(kNode0ReturnTimeout);
  advance();
  EXPECT_TRUE(node_1().link->has_lost_node_0());
  EXPECT_EQ(node_1().link->outcome(), false);
  EXPECT_EQ(node_1().link->deadline(), TimePoint::max());
}

// All launchers run, except `stopped`. The host of the stopped launcher still answers.
void NodeLinksWithDriver::pass_time(Duration time, const Launcher* stopped) {
  for (const TimePoint end = now() + time; now() < end; skip_time(std::chrono::seconds(1))) {
    for (int i = 0; i < 3; ++i) advance_all_but(stopped);
  }
}

void NodeLinksWithDriver::advance_all_but(const Launcher* stopped) {
  for (Launcher& launcher : launchers_)
    if (&launcher != stopped) launcher.advance(now());
  ::poll(nullptr, 0, 1);
}

TEST_F(NodeLinksWithDriver, ASilentNodeIsLost) {
  begin_job();
  Launcher& node_0 = launchers_.front();
  Launcher& node_2 = launchers_.back();
  pass_time(std::chrono::seconds(60), nullptr);
  EXPECT_TRUE(node_0.changes.empty());
  pass_time(std::chrono::seconds(8), &node_2);
  EXPECT_TRUE(node_0.changes.empty());
  pass_time(std::chrono::seconds(4), &node_2);
  ASSERT_EQ(node_0.changes.size(), 1U);
  EXPECT_EQ(node_0.changes[0].node, 2);
  EXPECT_FALSE(node_0.changes[0].is_present);
  EXPECT_THAT(node_0.changes[0].why, HasSubstr("said nothing for 10 s"));
  EXPECT_TRUE(node_0.link->is_connected(1));
  EXPECT_FALSE(node_0.link->is_connected(2));
}

TEST_F(NodeLinksWithDriver, ASilentNodeZeroIsNotLost) {
  begin_job();
  Launcher& node_0 = launchers_.front();
  Launcher& node_2 = launchers_.back();
  pass_time(std::chrono::seconds(30), &node_0);
  EXPECT_TRUE(node_2.link->is_connected(0)) << "the workers need it only to change the group";
  pass_time(std::chrono::seconds(5), nullptr);
  EXPECT_TRUE(node_0.changes.empty());
  EXPECT_TRUE(node_2.link->is_connected(0));
}

TEST_F(NodeLinks, ASecondNodeZeroCannotListen) {
  Launcher& node_0 = add_first_node(2);
  advance();
  Launcher& second_node_0 = add_first_node(2);
  advance();
  EXPECT_TRUE(node_0.error.ok());
  EXPECT_THAT(second_node_0.error.message(), HasSubstr("is there another node 0?"));
}

TEST_F(NodeLinks, NodeZeroCannotListenAtAnUnknownName) {
  endpoint_host_ = kInvalidName;
  Launcher& node_0 = add_first_node(2);
  advance();
  const std::string reason = " the name is not known: ";
  EXPECT_THAT(node_0.notices, ElementsAre(StartsWith("node 0 cannot listen at " + endpoint_text() +
                                                     " yet:" + reason)));
  EXPECT_TRUE(node_0.error.ok());
  EXPECT_GT(node_0.link->deadline(), now());  // node 0 sleeps until the next look-up
  skip_time(std::chrono::seconds(60));
  advance();
  EXPECT_EQ(node_0.error.code(), StatusCode::kStop);
  EXPECT_THAT(node_0.error.message(),
              StartsWith("node 0 cannot listen at " + endpoint_text() + ":" + reason));
}

TEST_F(NodeLinks, TheOthersSayThatTheNameIsUnknown) {
  endpoint_host_ = kInvalidName;
  Launcher& node_1 = add_other_node(1, 2);
  advance();
  const std::string waiting = "waiting for node 0 of 2 at " + endpoint_text();
  const std::string reason = "the name " + endpoint_host_ + " is not known: ";
  EXPECT_THAT(node_1.notices, ElementsAre(waiting));
  skip_time(std::chrono::seconds(11));
  advance();
  EXPECT_THAT(node_1.notices, ElementsAre(waiting, StartsWith(waiting + ": " + reason)));
  EXPECT_TRUE(node_1.error.ok());
  skip_time(std::chrono::seconds(60));
  advance();
  EXPECT_EQ(node_1.error.code(), StatusCode::kStop);
  EXPECT_THAT(node_1.error.message(),
              AllOf(HasSubstr("node 0 of 2 was not reached at " + endpoint_text()),
                    HasSubstr("(" + reason)));
}

// Node 0 answers with a start message that does not fit. It has another number of nodes, another
// number of workers of node 1, or not all ports and addresses for TensorFlow.
TEST_F(NodeLinks, TheStartOfAnotherJobIsAnError) {
  const std::vector<Start> wrong_starts{
      {.workers = {1}},
      {.workers = {1, 4, 1}},
      {.workers = {4, 1}},
      {.workers = {1, 4}, .tensorflow_ports = {1, 2, 3, 4}, .addresses = {"", "a"}},
      {.workers = {1, 4}, .tensorflow_ports = {1, 2, 3, 4, 5}, .addresses = {""}},
      {.workers = {1, 4}, .addresses = {"", "a"}}};
  const auto listener =
      TcpListener::open(*context_, {.addresses = {address_of("127.0.0.1:0")},
                                    .port_first = port_,
                                    .port_last = port_,
                                    .acceptance = {.self = {Role::kLauncher, 0}}});
  ASSERT_EQ(listener.status(), Status());
  for (const Start& start : wrong_starts) {
    Launcher& node_1 = add_other_node(1, 2, 4);
    std::unique_ptr<NodeChannel> node_0;
    run_until([&] {
      auto accepted = (*listener)->try_accept(now());
      if (accepted.ok() && *accepted != nullptr) {
        node_0 = std::make_unique<NodeChannel>(*std::move(accepted));
        node_0->send(start);
      }
      if (node_0 != nullptr) node_0->advance();
      return !node_1.error.ok();
    });
    EXPECT_EQ(node_1.error, Status::stop("node 0 has started another job than this one"));
    EXPECT_FALSE(node_1.has_started());
    launchers_.clear();
  }
}

// The messages of another version may have another form.
TEST(NodeChannels, AnotherVersionAtTheOtherEndIsAnError) {
  const auto wire = std::make_shared<SimulatedWire>(1);
  NodeChannel channel(std::make_unique<SimulatedConnection>(wire, 1));
  const Bytes message{std::byte{255}};
  auto& sent = wire->directions[0].sent;
  std::ranges::copy(encode_frame_header({.type = FrameType::kControl, .length = 1}),
                    std::back_inserter(sent));
  std::ranges::copy(message, std::back_inserter(sent));
  for (int round = 0; round < 100; ++round) EXPECT_TRUE(channel.advance().empty());
  EXPECT_EQ(channel.status(),
            Status::rebuild_group("the launcher at the other end runs another version of "
                                  "Farandole; install the same version on all hosts"));
}

TEST_F(NodeLinks, ConnectionsOfWorkersAreReturned) {
  Launcher& node_0 = add_first_node(2);
  add_other_node(1, 2);
  run_until_started();
  auto dialer =
      Dialer::start(*context_,
                    {.addresses = {SocketAddress::parse_ip("127.0.0.1")->with_port(port_)},
                     .link = {.dialer = {Role::kWorker, 1}, .listener = {Role::kLauncher, 0}}},
                    now(), now() + std::chrono::seconds(60));
  ASSERT_TRUE(dialer.ok());
  std::unique_ptr<Connection> connection;
  run_until([&] {
    auto new_link = (*dialer)->try_connect(now());
    if (new_link.ok() && *new_link != nullptr) connection = *std::move(new_link);
    return connection != nullptr && !node_0.workers.empty();
  });
  EXPECT_EQ(node_0.workers.front()->peer().party, (Party{Role::kWorker, 1}));
}

}  // namespace
}  // namespace farandole
