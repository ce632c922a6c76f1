#include "driver/driver.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/sibling_program.h"
#include "driver/relayed_launcher.h"
#include "remote/ssh_in_test.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct EndedJob {
  int code = -1;
  std::string output;
  std::string errors;
};

// Jobs on several hosts. A script replaces ssh and runs the commands for the other hosts on this
// host.
class DriverTest : public ::testing::Test {
 public:
  DriverTest() {
    plan_.program = find_sibling_program("driver_agent_in_test");
    plan_.version = "1.2.3";
    plan_.start_timeout = std::chrono::seconds(60);
    plan_.grace = std::chrono::seconds(60);
    plan_.order.folder = ssh_.folder();
    plan_.hosts = {{.name = "localhost", .user = ""}, {.name = "owl", .user = ""}};
  }
  ~DriverTest() override {
    if (driver_ > 0) ::kill(driver_, SIGKILL);
  }

 protected:
  // `prepare` runs in the process of the driver.
  void start(const std::string& script, const std::function<void()>& prepare = [] {}) {
    plan_.order.program = {"sh", "-c", script};
    driver_ = ::fork();
    if (driver_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends the driver if the test hangs and is killed
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      const Descriptor file(::open(file_of(stream).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
      ::dup2(file.get(), stream);
    }
    prepare();
    ::_exit(run_driver(plan_));
  }

  EndedJob wait_for_end() {
    int status = 0;
    EXPECT_EQ(::waitpid(driver_, &status, 0), driver_);
    driver_ = -1;
    EXPECT_TRUE(WIFEXITED(status));
    return {WEXITSTATUS(status), text_of(STDOUT_FILENO), text_of(STDERR_FILENO)};
  }

  EndedJob run(const std::string& script, const std::function<void()>& prepare = [] {}) {
    start(script, prepare);
    return wait_for_end();
  }

  // Runs a job that never begins, because a host is missing.
  EndedJob run_without_all_hosts() {
    return run("echo never", [] { ::setenv("AGENT_WAITS_FOR_OTHERS", "1", 1); });
  }

  void wait_for_output(const std::string& text) const {
    while (text_of(STDOUT_FILENO).find(text) == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  void send_signal(int signal) const { ::kill(driver_, signal); }

  std::string file_of(int stream) const {
    return ssh_.folder() + "/stream" + std::to_string(stream);
  }
  std::string text_of(int stream) const { return text_of(file_of(stream)); }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  SshInTest ssh_;
  DriverPlan plan_;
  pid_t driver_ = -1;
};

TEST_F(DriverTest, TheOutputOfAllHostsIsShown) {
  const EndedJob job = run("echo node $NODE on $HOST_NAME in $PWD; echo error of $NODE >&2");
  EXPECT_EQ(job.code, 0);
  EXPECT_THAT(job.output, HasSubstr("node 0 on localhost in " + ssh_.folder() + "\n"));
  EXPECT_THAT(job.output, HasSubstr("node 1 on owl in " + ssh_.folder() + "\n"));
  EXPECT_THAT(job.errors, AllOf(HasSubstr("error of 0\n"), HasSubstr("error of 1\n")));
  EXPECT_EQ(std::ranges::count(job.output + job.errors, '\n'), 4);
  EXPECT_THAT(ssh_.arguments(), ::testing::Not(HasSubstr("echo")));
}

TEST_F(DriverTest, OtherHostsGetTheVariables) {
  // A shell that ssh starts does not have this variable.
  ssh_.set_host_script("owl", "unset FARANDOLE_TEST_VARIABLE");
  const EndedJob job = run("[ ${#FARANDOLE_TEST_VARIABLE} = 100000 ] && echo complete", [] {
    ::setenv("FARANDOLE_TEST_VARIABLE", std::string(100'000, 'x').c_str(), 1);
  });
  EXPECT_EQ(job.code, 0);
  EXPECT_EQ(job.output, "complete\ncomplete\n");
}

TEST_F(DriverTest, TooManyVariablesAreAnError) {
  const EndedJob job = run("echo never", [] {
    ::setenv("AGENT_WAITS_FOR_OTHERS", "1", 1);
    for (int i = 0; i < 10; ++i)
      ::setenv(("FARANDOLE_TEST_" + std::to_string(i)).c_str(), std::string(100'000, 'x').c_str(),
               1);
  });
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.errors, AllOf(HasSubstr("cannot start the job on owl: the environment and the "
                                          "command together have 1"),
                                HasSubstr("at most 900000 are possible")));
}

TEST_F(DriverTest, TheExitCodeIsThatOfTheFirstNodeThatFails) {
  EXPECT_EQ(run("exit $((3 * $NODE))").code, 3);
  EXPECT_EQ(run("exit $((7 - $NODE))").code, 7);
  EXPECT_EQ(run("kill -TERM $$").code, 128 + SIGTERM);
}

TEST_F(DriverTest, ErrorsNameAllUnreachableHosts) {
  plan_.hosts = {{.name = "jay", .user = ""}, {.name = "owl", .user = ""}};
  ssh_.fail("jay", "ssh: Could not resolve hostname jay");
  ssh_.fail("owl", "ssh: connect to host owl port 22: Connection refused");
  const EndedJob job = run_without_all_hosts();
  EXPECT_EQ(job.code, 1);
  EXPECT_EQ(job.output, "");
  EXPECT_THAT(job.errors,
              HasSubstr("farandole: cannot start the job on jay: ssh: Could not resolve "
                        "hostname jay; add the name to /etc/hosts"));
  EXPECT_THAT(job.errors, HasSubstr("farandole: cannot start the job on owl: ssh: connect to host "
                                    "owl port 22: Connection refused; check that sshd runs"));
}

TEST_F(DriverTest, TheErrorNamesAHostThatEndsWithoutAMessage) {
  ssh_.set_host_script("owl", "exit 255");
  const EndedJob job = run_without_all_hosts();
  EXPECT_EQ(job.code, 1);
  EXPECT_EQ(job.output, "");
  EXPECT_EQ(job.errors,
            "farandole: cannot start the job on owl: `ssh` has exited with code 255 without a "
            "message; try `ssh -- owl true`\n");
}

TEST_F(DriverTest, AnotherVersionIsRejected) {
  ssh_.set_host_script("owl", "echo farandole agent 0.0.1; echo old >&2; exec cat >&2");
  const EndedJob job = run_without_all_hosts();
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.errors,
              HasSubstr("cannot start the job on owl: its version is \"0.0.1\", but here it is "
                        "\"1.2.3\"; install the same version on all hosts\n"));
}

TEST_F(DriverTest, AHostThatDoesNotAnswerInTimeIsAnError) {
  plan_.start_timeout = std::chrono::seconds(5);
  ssh_.set_host_script("owl", "echo 'a question?'; exec sleep 1000");
  const EndedJob job = run_without_all_hosts();
  EXPECT_EQ(job.code, 1);
  EXPECT_EQ(job.errors,
            "farandole: cannot start the job on owl: a question?; there is no answer after 5 s "
            "(--start-timeout)\n");
}

TEST_F(DriverTest, TheErrorNamesAProgramThatIsMissingOnThisHost) {
  plan_.program = "/does/not/exist";
  ssh_.set_host_script("owl", "exit 127");
  const EndedJob job = run_without_all_hosts();
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.errors, HasSubstr("cannot start the job on localhost: "));
  EXPECT_THAT(job.errors, HasSubstr("/does/not/exist"));
}

TEST_F(DriverTest, TheErrorNamesAMissingWorkingDirectory) {
  plan_.order.folder = "/does/not/exist";
  const EndedJob job = run("echo never");
  EXPECT_EQ(job.code, 2);
  EXPECT_THAT(job.errors, HasSubstr("the working directory /does/not/exist cannot be used on this "
                                    "host: No such file or directory"));
}

TEST_F(DriverTest, TheErrorNamesALauncherThatEndsBeforeTheJobBegins) {
  ssh_.set_host_script("owl", "export AGENT_FAILS_WITH=5");
  const EndedJob job = run_without_all_hosts();
  EXPECT_EQ(job.code, 5);
  EXPECT_THAT(job.errors,
              HasSubstr("cannot start the job on owl: the launcher has exited with code 5\n"));
}

TEST_F(DriverTest, MessagesOfStartUpFilesAreShownWithTheirHost) {
  ssh_.set_host_script("owl", "echo 'Welcome to owl'; printf 'no line end'");
  const EndedJob job = run("echo node $NODE");
  EXPECT_EQ(job.code, 0);
  EXPECT_THAT(job.errors, HasSubstr("owl: Welcome to owl\n"));
  EXPECT_THAT(job.errors, HasSubstr("owl: no line end\n"));
  EXPECT_THAT(job.output, ::testing::Not(HasSubstr("Welcome")));
}

TEST_F(DriverTest, ALostConnectionIsNotAnExitCode) {
  ssh_.set_host_script("owl", "sh -c \"$3\"; exit 255");
  const EndedJob job = run("[ $NODE = 1 ] || sleep 0.2");
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.errors, HasSubstr("owl: the connection has ended\n"));
}

TEST_F(DriverTest, ExitCode255OfTheJobIsNotALostConnection) {
  const EndedJob job = run("[ $NODE = 0 ] || exit 255");
  EXPECT_EQ(job.code, 255);
  EXPECT_EQ(job.errors, "");
  EXPECT_EQ(job.output, "");
}

constexpr const char* kTrapScript =
    "trap 'echo $NODE got INT; exit 130' INT; echo ready $NODE; while :; do sleep 0.01; done";

TEST_F(DriverTest, AnElasticJobIsOverWhenTheLauncherOfTheFirstNodeSucceeds) {
  plan_.elastic.emplace();
  const EndedJob job = run("echo on node $NODE");  // no launcher says that the job is over
  EXPECT_EQ(job.code, 0);
  EXPECT_EQ(job.errors, "");
  EXPECT_THAT(job.output, HasSubstr("on node 0\n"));
}

TEST_F(DriverTest, TheEndOfATracedLauncherIsNoticed) {
  start(
      "trap 'echo heard; exit 0' USR1; echo $HOST_NAME: launcher $PPID,; "
      "while :; do sleep 0.01; done");
  const std::string beginning = "localhost: launcher ";
  wait_for_output(beginning);
  wait_for_output("owl: launcher ");
  const std::string output = text_of(STDOUT_FILENO);
  const pid_t traced_launcher = std::stoi(output.substr(output.find(beginning) + beginning.size()));
  if (::ptrace(PTRACE_SEIZE, traced_launcher, nullptr, nullptr) != 0)
    GTEST_SKIP() << "this process may not trace others: " << std::strerror(errno);
  ::kill(traced_launcher, SIGKILL);
  siginfo_t end_info{};
  EXPECT_EQ(
      ::waitid(P_PID, static_cast<id_t>(traced_launcher), &end_info, WEXITED | WNOWAIT | __WALL),
      0);
  send_signal(SIGUSR1);
  wait_for_output("heard");  // by now, the driver has also noticed the end of traced_launcher
  EXPECT_EQ(::waitpid(traced_launcher, nullptr, __WALL), traced_launcher);
  const EndedJob job = wait_for_end();
  EXPECT_EQ(job.code, 128 + SIGKILL);
  EXPECT_THAT(job.errors, HasSubstr("localhost: the launcher was killed by signal 9 (SIGKILL)"));
}

TEST_F(DriverTest, CtrlCReachesTheProgramsOnAllHosts) {
  start(kTrapScript);
  for (const char* text : {"ready 0", "ready 1"}) wait_for_output(text);
  send_signal(SIGINT);
  const EndedJob job = wait_for_end();
  EXPECT_EQ(job.code, 130);
  EXPECT_THAT(job.output, AllOf(HasSubstr("0 got INT\n"), HasSubstr("1 got INT\n")));
}

TEST_F(DriverTest, TheSecondSignalDoesNotWaitForPrograms) {
  start("trap '' INT; echo ready $NODE; exec sleep 1000");
  for (const char* text : {"ready 0", "ready 1"}) wait_for_output(text);
  send_signal(SIGINT);
  send_signal(SIGTERM);
  EXPECT_EQ(wait_for_end().code, 128 + SIGTERM);
}

TEST_F(DriverTest, ASignalAfterTheEndOfTheReaderKeepsTheExitCode) {
  start("trap 'touch got-term' TERM; trap '' INT; echo $NODE; until [ -e end ]; do :; done; exit 1",
        [this] {
          std::filesystem::current_path(ssh_.folder());
          std::array<int, 2> ends{};
          CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
          ::dup2(ends[1], STDOUT_FILENO);
          ::close(ends[0]);
        });
  while (!std::filesystem::exists(ssh_.folder() + "/got-term"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  send_signal(SIGINT);
  std::ofstream(ssh_.folder() + "/end").put('\n');
  EXPECT_EQ(wait_for_end().code, 128 + SIGPIPE);
}

// The driver runs in a session of its own, as under `ssh -t` or `docker exec`.
TEST_F(DriverTest, CtrlZDoesNotStopAJobThatNoShellCouldContinue) {
  start("trap 'exit 5' CONT; echo ready $NODE; while :; do sleep 0.01; done", [] { ::setsid(); });
  for (const char* text : {"ready 0", "ready 1"}) wait_for_output(text);
  send_signal(SIGTSTP);
  EXPECT_EQ(wait_for_end().code, 5);
}

TEST_F(DriverTest, SignalsOfUsersAreOnlyPassedOn) {
  start("trap 'echo $NODE got USR1; exit 0' USR1; echo ready $NODE; while :; do sleep 0.01; done");
  for (const char* text : {"ready 0", "ready 1"}) wait_for_output(text);
  send_signal(SIGWINCH);
  send_signal(SIGUSR1);
  const EndedJob job = wait_for_end();
  EXPECT_EQ(job.code, 0);
  EXPECT_THAT(job.output, AllOf(HasSubstr("0 got USR1\n"), HasSubstr("1 got USR1\n")));
}

TEST_F(DriverTest, ASignalBeforeTheJobHasBegunEndsIt) {
  ssh_.set_host_script("owl", "touch connected; exec sleep 1000");
  const std::string connected = ssh_.folder() + "/connected";
  start("echo never", [this] {
    ::setenv("AGENT_WAITS_FOR_OTHERS", "1", 1);
    std::filesystem::current_path(ssh_.folder());
  });
  while (!std::filesystem::exists(connected))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  send_signal(SIGTERM);
  const EndedJob job = wait_for_end();
  EXPECT_EQ(job.code, 128 + SIGTERM);
  EXPECT_EQ(job.errors, "");
}

TEST_F(DriverTest, TheJobEndsWhenItsCallerEnds) {
  const pid_t caller = ::fork();
  if (caller == 0) {
    ::pause();
    ::_exit(0);
  }
  plan_.caller.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, caller, 0));
  start("echo ready $NODE; exec sleep 1000");
  for (const char* text : {"ready 0", "ready 1"}) wait_for_output(text);
  ::kill(caller, SIGKILL);
  ::waitpid(caller, nullptr, 0);
  EXPECT_EQ(wait_for_end().code, 128 + SIGTERM);
  ::close(plan_.caller.pidfd);
}

TEST_F(DriverTest, OutputOfEachRankIsSavedInTheFolder) {
  plan_.output_folder = ssh_.folder() + "/ranks";
  const EndedJob job = run("echo node $NODE");
  EXPECT_EQ(job.code, 0) << job.errors;
  EXPECT_EQ(text_of(plan_.output_folder + "/rank.0/stdout"), "copy from localhost\n");
  EXPECT_EQ(text_of(plan_.output_folder + "/rank.1/stdout"), "copy from owl\n");
  EXPECT_THAT(job.output, AllOf(HasSubstr("node 0\n"), HasSubstr("node 1\n")));
}

TEST_F(DriverTest, AFolderThatCannotBeMadeIsAnError) {
  plan_.output_folder = "/dev/null/ranks";
  const EndedJob job = run("echo never");
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.errors, AllOf(StartsWith("farandole: "), HasSubstr("/dev/null/ranks")));
}

TEST_F(DriverTest, ALauncherWithoutFreeDescriptorsReportsTheReason) {
  driver_ = ::fork();
  if (driver_ == 0) {
    const Descriptor file(::open(file_of(STDERR_FILENO).c_str(), O_WRONLY | O_CREAT, 0600));
    ::dup2(file.get(), STDERR_FILENO);
    const Descriptor lowest_free(::dup(STDERR_FILENO));
    const auto count = static_cast<rlim_t>(lowest_free.get());
    const rlimit limit{count, count};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const int code = run_relayed_launcher({}, 1, [](const CallerDescriptors&) { return 0; });
    ::close(STDIN_FILENO);  // the coverage tool needs a free descriptor to write its counts
    ::_exit(code);
  }
  const EndedJob launcher = wait_for_end();
  EXPECT_EQ(launcher.code, 1);
  EXPECT_THAT(launcher.errors, StartsWith("farandole: pipe2: Too many open files ("));
}

// The ends of pipes or sockets: `ours` stay here, and `theirs` are for the driver.
struct DescriptorEnds {
  std::vector<Descriptor> ours;
  std::vector<int> theirs;

  void add(std::array<int, 2> pair) {
    ours.emplace_back(pair[0]);
    ::fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    theirs.push_back(pair[1]);
  }
  void close_theirs() {
    for (const int descriptor : theirs) ::close(descriptor);
  }
  std::string text_of(std::size_t index) const {
    std::string text;
    char byte = 0;
    while (::read(ours.at(index).get(), &byte, 1) == 1) text += byte;
    return text;
  }
};

// Receives a channel, and the number of the rank to which it belongs.
std::pair<std::uint32_t, Descriptor> receive_channel(const Descriptor& door) {
  std::uint32_t rank = 0;
  iovec part{&rank, sizeof rank};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  EXPECT_EQ(::recvmsg(door.get(), &message, MSG_CMSG_CLOEXEC), 4);
  int number = -1;
  if (const cmsghdr* const rights = CMSG_FIRSTHDR(&message))
    std::memcpy(&number, CMSG_DATA(rights), sizeof number);
  return {rank, Descriptor(number)};
}

TEST_F(DriverTest, ChannelsOutputAndReportsAreRelayed) {
  DescriptorEnds door;
  DescriptorEnds streams;
  DescriptorEnds report;
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.data()), 0);
  door.add(pair);
  for (int rank = 0; rank < 2; ++rank) {
    for (int stream = 0; stream < 2; ++stream) {
      ASSERT_EQ(::pipe(pair.data()), 0);
      streams.add(pair);
    }
  }
  ASSERT_EQ(::pipe(pair.data()), 0);
  report.add(pair);
  plan_.caller.door = door.theirs.front();
  plan_.caller.streams = streams.theirs;
  plan_.caller.report = report.theirs.front();
  start("read -r word <&5; echo \"$word back from $NODE\" >&5; echo output of $NODE");
  for (DescriptorEnds* ends : {&door, &streams, &report}) ends->close_theirs();
  DescriptorEnds channels;
  channels.ours.resize(2);
  for (int i = 0; i < 2; ++i) {
    auto [rank, channel] = receive_channel(door.ours.front());
    ASSERT_EQ(::write(channel.get(), "hello\n", 6), 6);
    channels.ours.at(rank) = std::move(channel);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(channels.text_of(rank), "hello back from " + std::to_string(rank) + "\n");
    EXPECT_EQ(streams.text_of(2 * rank), "output of " + std::to_string(rank) + "\n");
    EXPECT_EQ(streams.text_of(2 * rank + 1), "");
  }
  const std::string report_lines = report.text_of(0);
  EXPECT_THAT(report_lines, AllOf(HasSubstr("ended 0 code 0\n"), HasSubstr("ended 1 code 0\n")));
  // Both launchers name a cause, but the driver reports only the first one.
  EXPECT_EQ(report_lines.find("cause 0\n"), report_lines.rfind("cause 0\n"));
  EXPECT_NE(report_lines.find("cause 0\n"), std::string::npos);
  const EndedJob job = wait_for_end();
  EXPECT_EQ(job.code, 0);
  EXPECT_EQ(job.errors, "");
}

TEST_F(DriverTest, SignalsReachARelayedLauncher) {
  plan_.output_folder = ssh_.folder() + "/ranks";
  start(kTrapScript);
  for (const char* text : {"ready 0", "ready 1"}) wait_for_output(text);
  send_signal(SIGINT);
  EXPECT_EQ(wait_for_end().code, 130);
}

}  // namespace
}  // namespace farandole
