#include "driver/host_discovery.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "driver/first_hosts.h"

namespace farandole {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> texts(const std::vector<HostEntry>& hosts) {
  std::vector<std::string> texts;
  for (const HostEntry& host : hosts) texts.push_back(host.name + ":" + std::to_string(host.slots));
  return texts;
}

class HostDiscoveryTest : public ::testing::Test {
 protected:
  HostDiscoveryTest() {
    ::sigprocmask(SIG_SETMASK, nullptr, &original_state_.signal_mask);
    ::getrlimit(RLIMIT_NOFILE, &original_state_.descriptor_limit);
  }
  // Runs the program once and returns its outcome.
  HostDiscovery::Update run_once(HostDiscovery& discovery) {
    now_ += HostDiscovery::kRunPause;
    const TimePoint test_deadline = std::chrono::steady_clock::now() + seconds(60);
    auto update = discovery.advance(now_);
    while (!update.hosts && update.error.empty() && !is_idle(discovery)) {
      EXPECT_LT(std::chrono::steady_clock::now(), test_deadline);
      (void)poller_.wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
      update = discovery.advance(now_);
    }
    return update;
  }
  bool is_idle(const HostDiscovery& discovery) const {
    return discovery.deadline() == now_ + HostDiscovery::kRunPause;
  }
  HostDiscovery make_discovery(const char* program, int slots_max = 100) {
    return HostDiscovery({.program = program, .slots_max = slots_max, .slots_default = 3}, poller_,
                         7, original_state_);
  }

  TimePoint now_ = std::chrono::steady_clock::now();
  OriginalProcessState original_state_{};
  Poller poller_ = Poller::create().value();
};

TEST_F(HostDiscoveryTest, ListsHosts) {
  auto discovery = make_discovery("echo hen:2; echo 'owl slots=30  # a comment'; echo fox", 4);
  EXPECT_THAT(texts(run_once(discovery).hosts.value()), ElementsAre("hen:2", "owl:4", "fox:3"));
  EXPECT_THAT(texts(run_once(discovery).hosts.value()), ElementsAre("hen:2", "owl:4", "fox:3"));
}

TEST_F(HostDiscoveryTest, ARepeatedFailureIsReportedOnce) {
  auto discovery = make_discovery("echo hen; exit 3");
  EXPECT_THAT(run_once(discovery).error, HasSubstr("has failed with exit code 3"));
  const auto second_update = run_once(discovery);
  EXPECT_EQ(second_update.error, "");
  EXPECT_FALSE(second_update.hosts.has_value()) << "the output of a failed program does not count";
}

TEST_F(HostDiscoveryTest, OutputThatIsNotAListIsAnError) {
  auto discovery = make_discovery("echo '-oProxyCommand=x'");
  EXPECT_THAT(run_once(discovery).error, HasSubstr("line 1"));
  auto second_discovery = make_discovery("true");
  EXPECT_THAT(run_once(second_discovery).error, HasSubstr("names no host"));
}

TEST_F(HostDiscoveryTest, AProgramThatHangsIsKilled) {
  auto discovery = make_discovery("sleep 1000");
  (void)discovery.advance(now_);
  now_ += HostDiscovery::kRunTimeMax;
  EXPECT_THAT(discovery.advance(now_).error, HasSubstr("has not ended within 20 s; it was killed"));
}

TEST_F(HostDiscoveryTest, TooMuchOutputIsAnError) {
  auto discovery = make_discovery("yes hen | head -c 2000000");
  EXPECT_THAT(run_once(discovery).error, HasSubstr("writes more than 1048576 bytes"));
}

TEST(FirstHosts, AreWholeHosts) {
  const std::vector<HostEntry> listed{{"a", "", 2}, {"b", "", 3}, {"c", "", 1}};
  EXPECT_THAT(texts(first_hosts(listed, 4)), ElementsAre("a:2", "c:1"));
  EXPECT_THAT(texts(first_hosts(listed, 6)), ElementsAre("a:2", "b:3", "c:1"));
}

TEST_F(HostDiscoveryTest, TheJobWaitsForEnoughSlots) {
  sigset_t no_signals;
  sigemptyset(&no_signals);
  const Descriptor signals(::signalfd(-1, &no_signals, SFD_CLOEXEC | SFD_NONBLOCK));
  std::vector<std::string> lines;
  const auto show = [&](const std::string& line) { lines.push_back(line); };
  const auto search_result =
      find_first_hosts({.program = "echo a:2", .slots_at_start = 2, .slots_max = 4},
                       {seconds(60), signals}, original_state_, show);
  ASSERT_TRUE(search_result.ok());
  EXPECT_THAT(texts(search_result->hosts), ElementsAre("a:2"));
  EXPECT_THAT(lines, IsEmpty());
  const auto failed_search =
      find_first_hosts({.program = "echo a:2", .slots_at_start = 3, .slots_max = 4},
                       {seconds(5), signals}, original_state_, show);
  EXPECT_THAT(failed_search.status().message(),
              HasSubstr("no hosts with 3 slots were found within 5 s"));
  EXPECT_THAT(lines, ElementsAre("the hosts have 2 slots so far; the job starts when there are 3"));
}

TEST_F(HostDiscoveryTest, ASignalEndsTheSearch) {
  sigset_t signal_set;
  sigset_t original_mask;
  sigemptyset(&signal_set);
  sigaddset(&signal_set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signal_set, &original_mask);
  const Descriptor signals(::signalfd(-1, &signal_set, SFD_CLOEXEC | SFD_NONBLOCK));
  ::raise(SIGTERM);
  const auto search_result =
      find_first_hosts({.program = "sleep 1000", .slots_at_start = 1, .slots_max = 4},
                       {seconds(60), signals}, original_state_, [](const std::string&) {});
  ::sigprocmask(SIG_SETMASK, &original_mask, nullptr);
  ASSERT_TRUE(search_result.ok());
  EXPECT_EQ(search_result->signal, SIGTERM);
}

TEST_F(HostDiscoveryTest, TheEndOfTheCallerEndsTheSearch) {
  sigset_t no_signals;
  sigemptyset(&no_signals);
  const Descriptor signals(::signalfd(-1, &no_signals, SFD_CLOEXEC | SFD_NONBLOCK));
  const pid_t caller = ::fork();
  if (caller == 0) ::_exit(0);
  const Descriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, caller, 0)));
  const auto search_result = find_first_hosts(
      {.program = "sleep 1000", .slots_at_start = 1, .slots_max = 4},
      {seconds(60), signals, pidfd.get()}, original_state_, [](const std::string&) {});
  ::waitpid(caller, nullptr, 0);
  ASSERT_TRUE(search_result.ok());
  EXPECT_EQ(search_result->signal, SIGTERM);
}

}  // namespace
}  // namespace farandole
