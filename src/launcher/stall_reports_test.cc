#include "launcher/stall_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include "diagnosis/worker_report.h"
#include "nodes/node_link_in_test.h"

namespace farandole {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr TimePoint kStart{seconds(1000)};

// A launcher of a job on three nodes with 2, 1 and 1 workers. There is no py-spy.
class Launcher {
 public:
  explicit Launcher(int node) : layout_{.node = node, .workers = {2, 1, 1}} {
    const auto count = static_cast<std::size_t>(layout_.local_size());
    for (std::size_t i = 0; i < count; ++i) {
      WatchedWorker worker{
          .host = "host" + std::to_string(node), .pid = 100, .report = {}, .end = ""};
      worker.report.member_state = MemberState::kMember;
      worker.report.groups = {kWorld};
      worker.report.since = kStart;
      workers.push_back(worker);
    }
    reports.begin(layout_, {&link, worker_reports.get()}, {[this] { return workers; }}, kStart);
  }
  // Records that the worker has waited in a call since kStart.
  void wait_in_call(std::size_t local_rank) {
    RecordedCall call;
    call.handle = 1;
    call.name = "x";
    call.submitted = call.changed = kStart;
    FlightReport& report = workers.at(local_rank).report;
    report.calls = {call};
    report.wait = {.handle = 1, .since = kStart, .until = {}};
  }
  std::vector<NodeMessage> take_messages() {
    std::vector<NodeMessage> messages;
    for (auto& [node, message] : std::exchange(link.sent_messages, {}))
      messages.push_back(std::move(message));
    return messages;
  }
  // Answers the questions, and gives the answers to `asker`.
  void answer(const std::vector<NodeMessage>& questions, Launcher& asker, TimePoint now) {
    for (const NodeMessage& question : questions) reports.handle(question, now);
    for (const NodeMessage& answer : take_messages()) asker.reports.handle(answer, now);
  }

  NodeLinkInTest link;
  std::unique_ptr<WorkerReports> worker_reports = *WorkerReports::create(4);
  std::vector<WatchedWorker> workers;
  std::vector<std::string> lines;

 private:
  static Poller make_poller() {
    auto poller = Poller::create();
    EXPECT_TRUE(poller.ok());
    return *std::move(poller);
  }

  NodeLayout layout_;
  OriginalProcessState state_{};
  Poller poller_ = make_poller();

 public:
  StallReports reports{seconds(10), StackCapture(poller_, 0, state_),
                       [this](const std::string& line) { lines.push_back(line); }};
};

class StallReportsTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("PATH", "/nonexistent", 1); }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }

 private:
  std::string path_ = std::getenv("PATH");
};

TEST_F(StallReportsTest, FindsStallsOnAllNodes) {
  Launcher node_0(0);
  Launcher node_1(1);
  Launcher node_2(2);
  node_0.wait_in_call(0);
  node_0.wait_in_call(1);
  node_2.wait_in_call(0);
  const TimePoint now = kStart + seconds(12);
  ASSERT_EQ(node_0.reports.next_check(), kStart + Duration(seconds(10)) / 4);
  node_0.reports.check(now);
  const auto questions = node_0.take_messages();
  ASSERT_EQ(questions.size(), 1);
  node_1.answer(questions, node_0, now);
  EXPECT_THAT(node_0.lines, IsEmpty());  // node 2 has not answered yet
  node_2.answer(questions, node_0, now);
  EXPECT_THAT(node_0.lines,
              ElementsAre("stalled: barrier `x` waits for rank 2",
                          "  ranks 0, 1, 3 have been waiting in it for 12.0 s",
                          "  rank 2 (host1, pid 100) has not called it; it has made no call since "
                          "init(), 12.0 s ago"));
  // Rank 2 runs on node 1, so node 1 must capture its stack.
  const auto stack_questions = node_0.take_messages();
  ASSERT_EQ(stack_questions.size(), 1);
  node_2.answer(stack_questions, node_0, now);
  EXPECT_EQ(node_0.lines.size(), 3);
  node_1.answer(stack_questions, node_0, now);
  EXPECT_THAT(node_0.lines.back(), HasSubstr("install py-spy"));
  EXPECT_THAT(node_0.lines.back(), HasSubstr("rank 2 does"));
  EXPECT_THAT(node_1.lines, IsEmpty());
  // `farandole status` finds the workers of the other nodes here.
  EXPECT_EQ(read_worker_report(node_0.worker_reports->memory(), 0), std::nullopt);
  EXPECT_EQ(read_worker_report(node_0.worker_reports->memory(), 2)->host, "host1");
  EXPECT_EQ(read_worker_report(node_0.worker_reports->memory(), 3)->report.calls.front().submitted,
            kStart);
}

TEST_F(StallReportsTest, AsksAgainWhenAllHaveAnswered) {
  Launcher node_0(0);
  Launcher node_1(1);
  Launcher node_2(2);
  for (int round = 1; round < 4; ++round) {
    const TimePoint now = kStart + seconds(3 * round);
    node_0.reports.check(now);
    const auto questions = node_0.take_messages();
    ASSERT_EQ(questions.size(), 1);
    node_2.answer(questions, node_0, now);
    node_0.reports.check(now + seconds(1));
    EXPECT_THAT(node_0.take_messages(), IsEmpty());
    node_1.answer(questions, node_0, now + seconds(2));
  }
  EXPECT_THAT(node_0.lines, IsEmpty());
}

TEST_F(StallReportsTest, WarnsOnceAboutANodeThatDoesNotAnswer) {
  Launcher node_0(0);
  Launcher node_1(1);
  node_0.reports.check(kStart);
  node_1.answer(node_0.take_messages(), node_0, kStart);
  node_0.reports.check(kStart + seconds(9));
  EXPECT_THAT(node_0.lines, IsEmpty());
  for (const int seconds_passed : {10, 20, 30})
    node_0.reports.check(kStart + seconds(seconds_passed));
  EXPECT_THAT(node_0.lines,
              ElementsAre(HasSubstr("the launcher of node 2 has not answered for 10 s")));
}

TEST_F(StallReportsTest, WarnsAgainIfAnotherNodeIsSilentLater) {
  Launcher node_0(0);
  Launcher node_1(1);
  Launcher node_2(2);
  node_0.reports.check(kStart);
  const auto first_questions = node_0.take_messages();
  node_1.answer(first_questions, node_0, kStart);
  node_0.reports.check(kStart + seconds(10));
  node_2.answer(first_questions, node_0, kStart + seconds(11));
  node_0.reports.check(kStart + seconds(12));
  node_2.answer(node_0.take_messages(), node_0, kStart + seconds(12));
  node_0.reports.check(kStart + seconds(22));
  EXPECT_THAT(node_0.lines, ElementsAre(HasSubstr("the launcher of node 2 has not answered"),
                                        HasSubstr("the launcher of node 1 has not answered")));
}

TEST_F(StallReportsTest, InvalidReportsFromAnotherNodeAreIgnored) {
  Launcher node_0(0);
  node_0.reports.handle(WorkerReport{0, "early"}, kStart);
  node_0.reports.check(kStart);
  node_0.reports.handle(WorkerReport{1'000'000, "far"}, kStart);
  node_0.reports.handle(WorkerReport{2, "no report"}, kStart);
  const Bytes own_report =
      encode_worker(node_0.workers.front(), kStart);  // node 0 knows its own workers
  const std::string text(reinterpret_cast<const char*>(own_report.data()), own_report.size());
  for (int i = 0; i < 4; ++i) node_0.reports.handle(WorkerReport{0, text}, kStart);
  node_0.reports.handle(StackReport{{"a line\x1b[2J"}}, kStart);
  EXPECT_THAT(node_0.lines, ElementsAre("a line\\x1b[2J"));
}

TEST_F(StallReportsTest, OnlyNodeZeroWarns) {
  Launcher node_1(1);
  EXPECT_EQ(node_1.reports.next_check(), std::nullopt);
}

}  // namespace
}  // namespace farandole
