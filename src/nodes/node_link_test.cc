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
#include "nodes/other_node.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A launcher in a test: the link, what it has said so far, and its error.
struct Launcher {
  std::unique_ptr<NodeLink> link;
  std::vector<std::string> notices{};
  std::vector<std::string> failures{};
  std::vector<WorkerExit> exits{};
  std::vector<std::unique_ptr<Connection>> workers{};
  Status error{};

  bool started() const { return link->start().has_value(); }
  void advance(TimePoint now) {
    if (!error.ok()) return;
    auto news = link->advance(now);
    error = news.status();
    if (!news.ok()) return;
    std::ranges::move(news->notices, std::back_inserter(notices));
    std::ranges::move(news->failures, std::back_inserter(failures));
    std::ranges::move(news->exits, std::back_inserter(exits));
    std::ranges::move(news->workers, std::back_inserter(workers));
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
    return {.endpoint = {"127.0.0.1", port_},
            .nodes = nodes,
            .node = node,
            .workers = workers,
            .host = "host" + std::to_string(node),
            .master_port = 99,
            .start_timeout = std::chrono::seconds(60)};
  }
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
    const TimePoint hang_guard = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), hang_guard);
      advance();
      ::poll(nullptr, 0, 1);
    }
  }
  void run_until_started() {
    run_until([&] { return std::ranges::all_of(launchers_, &Launcher::started); });
  }

  std::unique_ptr<TlsContext> context_ = context_of('a');
  std::uint16_t port_ = free_port(*context_);
  std::list<Launcher> launchers_;
  Duration skipped_{};
};

TEST_F(NodeLinks, StartWhenAllNodesHaveCome) {
  Launcher& second = other(1, 3, 4);
  advance();  // nobody listens yet
  Launcher& zero = first(3, 2);
  run_until([&] { return zero.notices.size() == 2; });
  EXPECT_THAT(zero.notices.front(), HasSubstr("waiting for nodes 1, 2 of 3 at 127.0.0.1:"));
  EXPECT_THAT(zero.notices.back(), HasSubstr("waiting for node 2 of 3"));
  EXPECT_FALSE(zero.started());
  Launcher& third = other(2, 3, 1);
  run_until_started();
  for (const Launcher* launcher : {&zero, &second, &third}) {
    EXPECT_THAT(launcher->link->start()->workers, ElementsAre(2, 4, 1));
    EXPECT_EQ(launcher->link->start()->master_port, 99U);
  }
  EXPECT_THAT(second.notices.front(), HasSubstr("waiting for node 0 of 3 at 127.0.0.1:"));
  EXPECT_THAT(second.notices, ::testing::Contains("waiting for node 2 of 3"));
}

TEST_F(NodeLinks, EndTogether) {
  Launcher& zero = first(2);
  Launcher& one = other(1, 2);
  run_until_started();
  one.link->report_exit({.rank = 1, .how = "rank 1 has exited"});
  one.link->report_end(0);
  run_until([&] { return !zero.exits.empty(); });
  EXPECT_EQ(zero.exits.front(), (WorkerExit{1, "rank 1 has exited"}));
  EXPECT_FALSE(zero.link->outcome().has_value());
  zero.link->report_end(0);
  run_until([&] { return one.link->outcome().has_value(); });
  EXPECT_EQ(zero.link->outcome(), true);
  EXPECT_EQ(one.link->outcome(), true);
  EXPECT_TRUE(zero.failures.empty());
}

TEST_F(NodeLinks, HearOfFailuresOnce) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  Launcher& two = other(2, 3);
  run_until_started();
  one.link->report_failing("rank 1 exited with code 3");
  one.link->report_end(3);
  run_until([&] { return !two.failures.empty() && !zero.failures.empty(); });
  zero.link->report_end(0);
  two.link->report_end(1);
  run_until([&] { return one.link->outcome() && two.link->outcome(); });
  EXPECT_THAT(zero.failures,
              ElementsAre("node 1 (host1): rank 1 exited with code 3", HasSubstr("node 2")));
  EXPECT_THAT(two.failures, ElementsAre("node 1 (host1): rank 1 exited with code 3"));
  EXPECT_EQ(one.link->outcome(), false);
}

TEST_F(NodeLinks, HearThatALauncherIsGone) {
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
  EXPECT_EQ(two.link->outcome(), false);
}

TEST_F(NodeLinks, RejectTheSecondLauncherOfANode) {
  Launcher& zero = first(3);
  Launcher& one = other(1, 3);
  run_until([&] { return zero.notices.size() == 2; });
  Launcher& again = other(1, 3);
  run_until([&] { return !again.error.ok(); });
  EXPECT_THAT(again.error.message(), HasSubstr("node 1 is there already, on host1"));
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

TEST_F(NodeLinks, NameNodeZeroAtTheTimeout) {
  Launcher& one = other(1, 2);
  advance();
  skip(std::chrono::seconds(60));
  run_until([&] { return !one.error.ok(); });
  EXPECT_THAT(one.error.message(), HasSubstr("node 0 of 2 was not reached at 127.0.0.1:"));
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

TEST_F(NodeLinks, ASecondNodeZeroCannotListen) {
  Launcher& zero = first(2);
  advance();
  Launcher& again = first(2);
  advance();
  EXPECT_TRUE(zero.error.ok());
  EXPECT_THAT(again.error.message(), HasSubstr("is there another node 0?"));
}

TEST_F(NodeLinks, WorkersAreHandedOut) {
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
