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

// No name server is asked, because this cannot be a name.
constexpr const char* kInvalidName = "nobody..invalid";

// A launcher in a test: the link, everything that the link has reported so far, and its error.
struct Launcher {
  std::unique_ptr<NodeLink> link;
  std::vector<std::string> notices{};
  std::vector<std::string> failures{};  // `why` of each
  std::optional<FailedNode> last_failure{};
  std::vector<NodeEnd> ends{};
  std::vector<NodeChange> changes{};
  std::vector<WorkerExit> exits{};
  std::vector<std::unique_ptr<Connection>> workers{};
  std::vector<NodeMessage> messages{};
  bool is_complete = false;  // no node is expected any more
  int found_node_0 = 0;      // how often node 0 was found again
  Status error{};

  bool started() const { return link->start_message().has_value(); }
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
    is_complete = is_complete || news->no_more_nodes_expected;
    found_node_0 += news->node_0_is_back ? 1 : 0;
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
  Launcher& first(int nodes, int workers = 1) {
    auto made = FirstNode::create(*context_, options(0, nodes, workers), now());
    return launchers_.emplace_back(Launcher{.link = *std::move(made)});
  }
  Launcher& other(int node, int nodes, int workers = 1, const TlsContext* context = nullptr) {
    auto made = OtherNode::create(context != nullptr ? *context : *context_,
                                  options(node, nodes, workers), now());
    return launchers_.emplace_back(Launcher{.link = *std::move(made)});
  }
  TimePoint now() const { return std::chrono::steady_clock::now() + skipped_; }
  void skip(Duration time) { skipped_ += time; }
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
    run_until([&] { return std::ranges::all_of(launchers_, &Launcher::started); });
  }

  std::unique_ptr<TlsContext> context_ = context_of('a');
  std::string endpoint_host_ = "127.0.0.1";
  std::uint16_t port_ = free_port(*context_);
  std::list<Launcher> launchers_;
  Duration skipped_{};
};

TEST_F(NodeLinks, StartWhenAllNodesHaveJoined) {
  Launcher& second = other(1, 3, 4);
  advance();  // node 0 does not listen yet
  Launcher& zero = first(3, 2);
  run_until([&] { return zero.notices.size() == 2; });
  EXPECT_THAT(zero.notices.front(), HasSubstr("waiting for nodes 1, 2 of 3 at 127.0.0.1:"));
  EXPECT_THAT(zero.notices.back(), HasSubstr("waiting for node 2 of 3"));
  EXPECT_FALSE(zero.started());
  Launcher& third = other(2, 3, 1);
  run_until_started();
  for (const Launcher* launcher : {&zero, &second, &third}) {
    EXPECT_THAT(launcher->link->start_message()->workers, ElementsAre(2, 4, 1));
    EXPECT_EQ(launcher->link->start_message()->master_port, 99U);
  }
  EXPECT_THAT(second.notices.front(), HasSubstr("waiting for node 0 of 3 at 127.0.0.1:"));
  EXPECT_THAT(second.notices, ::testing::Contains("waiting for node 2 of 3"));
}

TEST_F(NodeLinks, TheMasterPortIsOnTheFirstNodeThatHasWorkers) {
  const Launcher& zero = first(2, 0);
  const Launcher& one = other(1, 2);
  run_until_started();
  for (const Launcher* launcher : {&zero, &one}) {
    EXPECT_THAT(launcher->link->start_message()->workers, ElementsAre(0, 1));
    EXPECT_EQ(launcher->link->start_message()->master_port, 100U);
    EXPECT_EQ(launcher->link->start_message()->master_address, "127.0.0.1");
  }
}

TEST_F(NodeLinks, TellWhereTheServersOfFrameworksListen) {
  const auto with_ports = [this](int node, int workers, std::vector<std::uint32_t> ports) {
    NodeOptions own = options(node, 2, workers);
    own.tensorflow_ports = std::move(ports);
    own.uses_jax = true;
    own.jax_port = node == 0 ? 6U : 0U;
    return own;
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
  Launcher& zero = first(2);
  NodeOptions own = options(1, 2, 1);
  own.uses_jax = true;
  Launcher& one =
      launchers_.emplace_back(Launcher{.link = *OtherNode::create(*context_, own, now())});
  run_until([&] { return !zero.error.ok() && !one.error.ok(); });
  EXPECT_EQ(zero.error, one.error);
  EXPECT_EQ(zero.error,
            Status::fix_call("node 1 on host1 was started with --jax, but node 0 on host0 without "
                             "it; start all nodes with the same flags"));
}

TEST_F(NodeLinks, EndTogether) {
  Launcher& zero = first(2);
  Launcher& one = other(1, 2);
  run_until_started();
  one.link->report_exit({.rank = 1, .how_it_ended = "rank 1 has exited"});
  one.link->report_end(0, {});
  run_until([&] { return !zero.exits.empty(); });
  EXPECT_EQ(zero.exits.front(), (WorkerExit{1, "rank 1 has exited"}));
  EXPECT_FALSE(zero.link->outcome().has_value());
  zero.link->report_end(0, {});
  EXPECT_EQ(zero.link->outcome(), true);
  EXPECT_FALSE(one.link->outcome().has_value());
  zero.link->tell(JobOver{0});
  run_until([&] { return one.link->outcome().has_value(); });
  EXPECT_EQ(one.link->outcome(), true);
  EXPECT_EQ(one.link->job_exit_code(), 0);
  EXPECT_TRUE(zero.failures.empty());
}

TEST_F(NodeLinks, StayConnectedAfterTheEnd) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  Launcher& two = other(2, 3);
  run_until_started();
  for (const Launcher& launcher : launchers_) launcher.link->report_end(0, {});
  run_until([&] { return zero.link->outcome().has_value(); });
  zero.link->tell(JobOver{0});
  run_until([&] { return one.link->outcome() && two.link->outcome(); });
  zero.link->tell(TimelineWanted{8, "job", "{}"});
  zero.link->tell_node(2, TimelineWanted{1, "", ""});
  run_until([&] { return one.messages.size() == 1 && two.messages.size() == 2; });
  EXPECT_EQ(two.messages.back(), (NodeMessage(TimelineWanted{1, "", ""})));
  one.link->tell(TimelinePiece{2, "of another node"});
  one.link->tell(TimelineEnd{2, "of another node"});
  one.link->tell(TimelinePiece{1, "text"});
  one.link->tell(TimelineEnd{1, "why"});
  run_until([&] { return zero.messages.size() == 2; });
  EXPECT_THAT(zero.messages, ElementsAre(NodeMessage(TimelinePiece{1, "text"}),
                                         NodeMessage(TimelineEnd{1, "why"})));
  EXPECT_EQ(one.messages.size(), 1U);
  EXPECT_TRUE(zero.link->is_connected(1));
  EXPECT_TRUE(two.link->is_connected(0));
  one.link.reset();
  run_until([&] { return !zero.link->is_connected(1); });
  EXPECT_TRUE(zero.link->is_connected(2));
  zero.link.reset();
  run_until([&] { return !two.link->is_connected(0); });
  EXPECT_TRUE(two.failures.empty());
  EXPECT_FALSE(two.link->has_lost_node_0());
  EXPECT_EQ(two.link->outcome(), true);
}

TEST_F(NodeLinks, SendMoreThanTheKernelBuffers) {
  constexpr std::size_t kPieces = 200;
  Launcher& zero = first(2);
  Launcher& one = other(1, 2);
  run_until_started();
  for (std::size_t i = 0; i < kPieces; ++i)
    one.link->tell(TimelinePiece{1, std::string(60'000, static_cast<char>('a' + i % 26))});
  run_until([&] { return zero.messages.size() == kPieces; });
  for (std::size_t i = 0; i < kPieces; ++i)
    EXPECT_EQ(std::get<TimelinePiece>(zero.messages[i]).text.front(),
              static_cast<char>('a' + i % 26));
}

TEST_F(NodeLinks, ALongReportIsCut) {
  Launcher& zero = first(2);
  Launcher& one = other(1, 2);
  run_until_started();
  one.link->report_end(3, std::vector<std::string>(1000, std::string(100, 'x')));
  run_until([&] { return !zero.ends.empty(); });
  EXPECT_EQ(zero.ends.front().exit_code, 3);
  EXPECT_THAT(zero.ends.front().report, ::testing::Contains(HasSubstr("lines are missing here")));
}

TEST_F(NodeLinks, ReportEachFailureOnce) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  Launcher& two = other(2, 3);
  run_until_started();
  one.link->report_failing({.why = "rank 1 exited with code 3", .rank = 1, .blamed_rank = 0});
  one.link->report_end(3, {"a box\x1b", "of lines"});
  run_until([&] { return !two.failures.empty() && !zero.failures.empty(); });
  zero.link->report_end(0, {});
  two.link->report_end(1, {});
  run_until([&] { return zero.link->outcome().has_value(); });
  EXPECT_EQ(zero.link->outcome(), false);
  zero.link->tell(JobOver{3});
  run_until([&] { return one.link->outcome() && two.link->outcome(); });
  EXPECT_THAT(zero.failures,
              ElementsAre("node 1 (host1): rank 1 exited with code 3", HasSubstr("node 2")));
  EXPECT_THAT(two.failures, ElementsAre("node 1 (host1): rank 1 exited with code 3"));
  EXPECT_EQ(two.last_failure->node, 1U);
  EXPECT_EQ(two.last_failure->failure.rank, 1U);
  EXPECT_EQ(two.last_failure->failure.blamed_rank, 0U);
  for (const Launcher* launcher : {&one, &two}) {
    EXPECT_EQ(launcher->link->outcome(), false);
    EXPECT_EQ(launcher->link->job_exit_code(), 3);
  }
  ASSERT_EQ(zero.ends.size(), 2U);
  EXPECT_EQ(zero.ends.front().node, 1);
  EXPECT_EQ(zero.ends.front().exit_code, 3);
  EXPECT_THAT(zero.ends.front().report, ElementsAre("a box\\x1b", "of lines"));
  EXPECT_TRUE(two.ends.empty());
}

TEST_F(NodeLinks, ReportALostLauncher) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  Launcher& two = other(2, 3);
  run_until_started();
  one.link.reset();
  run_until([&] { return !two.failures.empty(); });
  EXPECT_THAT(zero.failures, ElementsAre(HasSubstr("node 1 (host1) is gone")));
  EXPECT_THAT(two.failures, ElementsAre(HasSubstr("node 1 (host1) is gone")));
  zero.link.reset();
  run_until([&] { return two.failures.size() == 2; });
  EXPECT_THAT(two.failures.back(), HasSubstr("the launcher of node 0 is gone"));
  EXPECT_TRUE(two.link->has_lost_node_0());
  EXPECT_EQ(two.link->outcome(), false);
}

TEST_F(NodeLinks, ANodeOfAnElasticJobMayComeBack) {
  const auto elastic = [this](int node) {
    NodeOptions own = options(node, 3, 1);
    own.is_elastic = true;
    return own;
  };
  Launcher& zero =
      launchers_.emplace_back(Launcher{.link = *FirstNode::create(*context_, elastic(0), now())});
  Launcher& one =
      launchers_.emplace_back(Launcher{.link = *OtherNode::create(*context_, elastic(1), now())});
  Launcher& two =
      launchers_.emplace_back(Launcher{.link = *OtherNode::create(*context_, elastic(2), now())});
  run_until_started();
  EXPECT_FALSE(one.link->start_message()->has_begun);
  one.link.reset();
  run_until([&] { return zero.changes.size() == 1; });
  EXPECT_FALSE(zero.changes[0].is_present);
  EXPECT_EQ(zero.changes[0].node, 1);
  EXPECT_THAT(zero.changes[0].why, HasSubstr("node 1 (host1) is gone"));
  EXPECT_FALSE(zero.link->is_connected(1));

  Launcher& again =
      launchers_.emplace_back(Launcher{.link = *OtherNode::create(*context_, elastic(1), now())});
  run_until([&] { return again.started(); });
  EXPECT_TRUE(again.link->start_message()->has_begun);
  ASSERT_EQ(zero.changes.size(), 2U);
  EXPECT_TRUE(zero.changes[1].is_present);
  zero.link->tell_node(1, WorkerStart{1, 3});
  zero.link->tell(GroupFormed{2, {0, 2}, {0, 2}});
  run_until([&] { return again.messages.size() == 2 && !two.messages.empty(); });
  EXPECT_THAT(again.messages, ElementsAre(NodeMessage(WorkerStart{1, 3}),
                                          NodeMessage(GroupFormed{2, {0, 2}, {0, 2}})));
  EXPECT_TRUE(zero.failures.empty() && two.failures.empty());

  again.link->report_end(5, {"its box"});  // slot 1 is not in the group
  run_until([&] { return !zero.ends.empty(); });
  EXPECT_EQ(zero.ends[0].exit_code, 0);
  again.link.reset();
  for (Launcher* launcher : {&zero, &two}) launcher->link->report_end(0, {});
  run_until([&] { return zero.link->outcome().has_value(); });
  EXPECT_EQ(zero.link->outcome(), true) << "the job has succeeded without node 1";
}

TEST(NodeEnds, TheFirstFailureIsTheFailureOfTheJob) {
  EXPECT_EQ(first_failure({}), std::nullopt);
  EXPECT_EQ(first_failure({{.node = 1, .exit_code = 0, .report = {}}}), std::nullopt);
  const auto failed = first_failure(
      {{.node = 2, .exit_code = 3, .report = {}}, {.node = 1, .exit_code = 4, .report = {}}});
  EXPECT_EQ(failed->node, 2U);
  EXPECT_EQ(failed->failure.why, "node 2 has ended with exit code 3");
}

// As in a job of a driver: node 0 chooses the port, and the driver tells the other node.
TEST_F(NodeLinks, ConnectAtAPortThatNode0HasChosen) {
  NodeOptions node_0_options = options(0, 2, 1);
  node_0_options.endpoint = {"hen", 0};
  node_0_options.listen_choice =
      ListenChoice{.interfaces = {.use = {"127.0.0.1", "::1"}, .avoid = {}}, .ports = {}};
  Launcher& zero = launchers_.emplace_back(
      Launcher{.link = *FirstNode::create(*context_, node_0_options, now())});
  EXPECT_TRUE(zero.link->listening_addresses().empty());
  run_until([&] { return !zero.link->listening_addresses().empty(); });
  const auto addresses = zero.link->listening_addresses();
  EXPECT_GT(addresses.front().port, 0);
  EXPECT_TRUE(zero.notices.empty());
  skip(std::chrono::seconds(10));
  run_until([&] { return !zero.notices.empty(); });
  EXPECT_THAT(zero.notices.front(), HasSubstr("at hen:" + std::to_string(addresses[0].port)));
  NodeOptions node_1_options = options(1, 2, 1);
  node_1_options.endpoint = {kInvalidName, 0};  // never looked up
  node_1_options.addresses = addresses;
  Launcher& one = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, node_1_options, now())});
  EXPECT_TRUE(one.link->listening_addresses().empty());
  run_until_started();
  EXPECT_EQ(zero.link->endpoint().text(), addresses.front().text());
  EXPECT_THAT(addresses, ::testing::Contains(*SocketAddress::parse(one.link->endpoint().text())));
}

TEST_F(NodeLinks, NameTheAddressesAtWhichNode0WasNotReached) {
  NodeOptions node_1_options = options(1, 2, 1);
  node_1_options.endpoint = {"hen", 0};
  node_1_options.addresses = {*SocketAddress::parse("127.0.0.1:1")};
  Launcher& one = launchers_.emplace_back(
      Launcher{.link = *OtherNode::create(*context_, node_1_options, now())});
  run_until([&] { return !one.notices.empty(); });
  EXPECT_EQ(one.notices.front(), "waiting for node 0 of 2 at hen (127.0.0.1:1)");
  skip(std::chrono::seconds(60));
  run_until([&] { return !one.error.ok(); });
  EXPECT_THAT(one.error.message(), AllOf(HasSubstr("was not reached at hen (127.0.0.1:1)"),
                                         HasSubstr("look for a firewall between the hosts")));
}

TEST_F(NodeLinks, RejectTheSecondLauncherOfANode) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  run_until([&] { return zero.notices.size() == 2; });
  Launcher& again = other(1, 3);
  run_until([&] { return !again.error.ok(); });
  EXPECT_THAT(again.error.message(), HasSubstr("node 1 has already joined, on host1"));
  again.link.reset();
  launchers_.pop_back();
  other(2, 3);
  run_until_started();
  EXPECT_TRUE(one.error.ok());
}

TEST_F(NodeLinks, EndIfTheNumbersOfNodesDiffer) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  run_until([&] { return zero.notices.size() == 2; });
  Launcher& two = other(2, 4);
  run_until([&] { return !zero.error.ok() && !one.error.ok() && !two.error.ok(); });
  for (const Launcher& launcher : launchers_)
    EXPECT_THAT(launcher.error.message(),
                HasSubstr("node 0 was started with --nodes 3, and node 2 on host2 with --nodes 4"));
}

TEST_F(NodeLinks, NameTheMissingNodesAtTheTimeout) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  run_until([&] { return zero.notices.size() == 2; });
  skip(std::chrono::seconds(60));
  run_until([&] { return !zero.error.ok() && !one.error.ok(); });
  for (const Launcher& launcher : launchers_)
    EXPECT_THAT(launcher.error.message(), HasSubstr("node 2 of 3 has not come to 127.0.0.1:"));
}

TEST_F(NodeLinks, NameTheMissingNodesEvenIfNodeZeroIsSilent) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  run_until([&] { return std::ranges::count(one.notices, "waiting for node 2 of 3") == 1; });
  skip(std::chrono::seconds(66));
  one.advance(now());
  EXPECT_EQ(one.error, Status::stop("node 2 of 3 did not come within 60 s (--start-timeout)"));
  EXPECT_TRUE(zero.error.ok());
}

TEST_F(NodeLinks, NameNodeZeroAtTheTimeout) {
  Launcher& one = other(1, 2);
  advance();
  skip(std::chrono::seconds(60));
  run_until([&] { return !one.error.ok(); });
  EXPECT_THAT(one.error.message(),
              HasSubstr("node 0 of 2 was not reached at " + endpoint_text() + " (this host)"));
}

TEST_F(NodeLinks, AnotherSecretIsAnErrorOnBothSides) {
  const auto wrong = context_of('b');
  Launcher& zero = first(2);
  Launcher& one = other(1, 2, 1, wrong.get());
  run_until([&] { return !one.notices.empty() && zero.notices.size() == 2; });
  EXPECT_THAT(zero.notices.back(), HasSubstr("its file with the secret is different"));
  skip(std::chrono::seconds(11));
  run_until([&] { return !one.error.ok(); });
  EXPECT_THAT(one.error.message(), HasSubstr("the file with the secret must be the same"));
  skip(std::chrono::seconds(60));
  run_until([&] { return !zero.error.ok(); });
  EXPECT_THAT(zero.error.message(), HasSubstr("node 1 of 2 has not come"));
  EXPECT_THAT(zero.error.message(), HasSubstr("connections were rejected"));
}

TEST_F(NodeLinks, NodeZeroMayBeStartedAgainBeforeTheStart) {
  Launcher& zero = first(3);
  other(1, 3);
  run_until([&] { return zero.notices.size() == 2; });
  zero.link.reset();
  launchers_.pop_front();
  first(3);
  other(2, 3);
  run_until_started();
}

// Node 0 has no workers, and a driver can replace its launcher.
class NodeLinksWithDriver : public NodeLinks {
 protected:
  NodeOptions elastic_job_options(int node) const {
    NodeOptions own = options(node, 3, node);
    own.is_elastic = true;
    if (node > 0) own.addresses = {address_of("127.0.0.1:0").with_port(port_)};
    return own;
  }
  Launcher& first_launcher_of_elastic_job(const std::optional<Replacement>& replaces) {
    NodeOptions own = elastic_job_options(0);
    own.listen_choice = ListenChoice{InterfaceChoice{{"lo"}}, {port_, port_}};
    if (replaces) own.addresses = {address_of("127.0.0.1:0").with_port(port_)};
    own.replaces = replaces;
    auto made = FirstNode::create(*context_, own, now());
    return launchers_.emplace_back(Launcher{.link = *std::move(made)});
  }
  void begin() {
    first_launcher_of_elastic_job({});
    for (const int node : {1, 2}) {
      auto made = OtherNode::create(*context_, elastic_job_options(node), now());
      launchers_.push_back(Launcher{.link = *std::move(made)});
    }
    run_until_started();
  }
  void lose_first() { launchers_.pop_front(); }
  Launcher& one() { return launchers_.front(); }  // when the launcher of node 0 is lost
  void pass_time(Duration time, const Launcher* stopped);
  void advance_all_but(const Launcher* stopped);
};

TEST_F(NodeLinksWithDriver, TheOthersFindTheNewLauncherOfNodeZero) {
  begin();
  lose_first();
  one().link->report_end(3, {"why"});  // the new launcher must learn this
  for (int i = 0; i < 20; ++i) advance();
  EXPECT_FALSE(one().link->outcome().has_value());
  Launcher& zero = first_launcher_of_elastic_job(
      Replacement{.number = 1, .workers = {0, 1, 2}, .nodes = {1, 2}});
  run_until([&] { return zero.is_complete && zero.ends.size() == 1; });
  EXPECT_THAT(zero.link->start_message()->workers, ElementsAre(0, 1, 2));
  ASSERT_EQ(zero.changes.size(), 2U);
  for (const NodeChange& change : zero.changes) EXPECT_TRUE(change.is_present && change.has_begun);
  EXPECT_EQ(zero.ends[0].exit_code, 3);
  run_until([&] { return one().found_node_0 == 1 && std::next(launchers_.begin())->found_node_0; });
  const NodeState state{.node = 9, .slots = {0}, .numbers = {4}};
  one().link->tell(state);
  run_until([&] { return !zero.messages.empty(); });
  EXPECT_EQ(std::get<NodeState>(zero.messages[0]).node, 1U) << "that of the connection";
  EXPECT_FALSE(one().link->has_lost_node_0());
  EXPECT_TRUE(one().failures.empty());
}

TEST_F(NodeLinksWithDriver, ANodeThatComesTooLateIsRejected) {
  begin();
  lose_first();
  Launcher late = std::move(launchers_.back());
  launchers_.pop_back();
  Launcher& zero = first_launcher_of_elastic_job(
      Replacement{.number = 1, .workers = {0, 1, 2}, .nodes = {1, 2}});
  run_until([&] { return zero.changes.size() == 1; });
  EXPECT_FALSE(zero.is_complete);
  EXPECT_LE(zero.link->deadline(), now() + kReplacementTimeout);
  skip(kReplacementTimeout);
  run_until([&] { return zero.is_complete; });
  ASSERT_EQ(zero.changes.size(), 2U) << "the driver must know that it is lost";
  EXPECT_EQ(zero.changes[1].node, 2);
  EXPECT_FALSE(zero.changes[1].is_present);
  run_until([&] {
    late.advance(now() - skipped_);  // its time limit is not reached yet
    return late.link->outcome().has_value();
  });
  EXPECT_EQ(late.link->outcome(), false);
  EXPECT_TRUE(late.link->has_lost_node_0());
  EXPECT_THAT(late.failures, ElementsAre(HasSubstr("the launcher of node 0 is gone: ")));
}

TEST_F(NodeLinksWithDriver, TheOthersWaitALimitedTimeForALostNodeZero) {
  begin();
  lose_first();
  run_until([&] { return !one().link->is_connected(0); });
  EXPECT_FALSE(one().link->outcome().has_value());
  skip(kNode0ReturnTimeout);
  advance();
  EXPECT_TRUE(one().link->has_lost_node_0());
  EXPECT_EQ(one().link->outcome(), false);
  EXPECT_EQ(one().link->deadline(), TimePoint::max());
}

// All launchers run, except `stopped`. The host of the stopped launcher still answers.
void NodeLinksWithDriver::pass_time(Duration time, const Launcher* stopped) {
  for (const TimePoint end = now() + time; now() < end; skip(std::chrono::seconds(1))) {
    for (int i = 0; i < 3; ++i) advance_all_but(stopped);
  }
}

void NodeLinksWithDriver::advance_all_but(const Launcher* stopped) {
  for (Launcher& launcher : launchers_)
    if (&launcher != stopped) launcher.advance(now());
  ::poll(nullptr, 0, 1);
}

TEST_F(NodeLinksWithDriver, ASilentNodeIsLost) {
  begin();
  Launcher& zero = launchers_.front();
  Launcher& last = launchers_.back();
  pass_time(std::chrono::seconds(60), nullptr);
  EXPECT_TRUE(zero.changes.empty());
  pass_time(std::chrono::seconds(8), &last);
  EXPECT_TRUE(zero.changes.empty());
  pass_time(std::chrono::seconds(4), &last);
  ASSERT_EQ(zero.changes.size(), 1U);
  EXPECT_EQ(zero.changes[0].node, 2);
  EXPECT_FALSE(zero.changes[0].is_present);
  EXPECT_THAT(zero.changes[0].why, HasSubstr("said nothing for 10 s"));
  EXPECT_TRUE(zero.link->is_connected(1));
  EXPECT_FALSE(zero.link->is_connected(2));
}

TEST_F(NodeLinksWithDriver, ASilentNodeZeroIsNotLost) {
  begin();
  Launcher& zero = launchers_.front();
  Launcher& last = launchers_.back();
  pass_time(std::chrono::seconds(30), &zero);
  EXPECT_TRUE(last.link->is_connected(0)) << "the workers need it only to change the group";
  pass_time(std::chrono::seconds(5), nullptr);
  EXPECT_TRUE(zero.changes.empty());
  EXPECT_TRUE(last.link->is_connected(0));
}

TEST_F(NodeLinks, ASecondNodeZeroCannotListen) {
  Launcher& zero = first(2);
  advance();
  Launcher& again = first(2);
  advance();
  EXPECT_TRUE(zero.error.ok());
  EXPECT_THAT(again.error.message(), HasSubstr("is there another node 0?"));
}

TEST_F(NodeLinks, NodeZeroCannotListenAtAnUnknownName) {
  endpoint_host_ = kInvalidName;
  Launcher& zero = first(2);
  advance();
  const std::string reason = " the name is not known: ";
  EXPECT_THAT(zero.notices, ElementsAre(StartsWith("node 0 cannot listen at " + endpoint_text() +
                                                   " yet:" + reason)));
  EXPECT_TRUE(zero.error.ok());
  EXPECT_GT(zero.link->deadline(), now());  // it sleeps until the next look-up
  skip(std::chrono::seconds(60));
  advance();
  EXPECT_EQ(zero.error.code(), StatusCode::kStop);
  EXPECT_THAT(zero.error.message(),
              StartsWith("node 0 cannot listen at " + endpoint_text() + ":" + reason));
}

TEST_F(NodeLinks, TheOthersSayThatTheNameIsUnknown) {
  endpoint_host_ = kInvalidName;
  Launcher& one = other(1, 2);
  advance();
  const std::string waiting = "waiting for node 0 of 2 at " + endpoint_text();
  const std::string reason = "the name " + endpoint_host_ + " is not known: ";
  EXPECT_THAT(one.notices, ElementsAre(waiting));
  skip(std::chrono::seconds(11));
  advance();
  EXPECT_THAT(one.notices, ElementsAre(waiting, StartsWith(waiting + ": " + reason)));
  EXPECT_TRUE(one.error.ok());
  skip(std::chrono::seconds(60));
  advance();
  EXPECT_EQ(one.error.code(), StatusCode::kStop);
  EXPECT_THAT(one.error.message(),
              AllOf(HasSubstr("node 0 of 2 was not reached at " + endpoint_text()),
                    HasSubstr("(" + reason)));
}

// Node 0 answers with a start that has another number of nodes, or of workers of node 1, or too few
// ports or addresses for TensorFlow.
TEST_F(NodeLinks, TheStartOfAnotherJobIsAnError) {
  const std::vector<Start> others{
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
  for (const Start& start : others) {
    Launcher& one = other(1, 2, 4);
    std::unique_ptr<NodeChannel> zero;
    run_until([&] {
      auto accepted = (*listener)->try_accept(now());
      if (accepted.ok() && *accepted != nullptr) {
        zero = std::make_unique<NodeChannel>(*std::move(accepted));
        zero->send(start);
      }
      if (zero != nullptr) zero->advance();
      return !one.error.ok();
    });
    EXPECT_EQ(one.error, Status::stop("node 0 has started another job than this one"));
    EXPECT_FALSE(one.started());
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
  Launcher& zero = first(2);
  other(1, 2);
  run_until_started();
  auto dialer =
      Dialer::start(*context_,
                    {.addresses = {SocketAddress::parse_ip("127.0.0.1")->with_port(port_)},
                     .link = {.dialer = {Role::kWorker, 1}, .listener = {Role::kLauncher, 0}}},
                    now(), now() + std::chrono::seconds(60));
  ASSERT_TRUE(dialer.ok());
  std::unique_ptr<Connection> connection;
  run_until([&] {
    auto made = (*dialer)->try_connect(now());
    if (made.ok() && *made != nullptr) connection = *std::move(made);
    return connection != nullptr && !zero.workers.empty();
  });
  EXPECT_EQ(zero.workers.front()->peer().party, (Party{Role::kWorker, 1}));
}

}  // namespace
}  // namespace farandole
