#include "launcher/agent.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "launcher/launcher_in_test.h"
#include "nodes/secret_file.h"
#include "workers/reserved_port.h"

namespace farandole {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Descriptor pidfd_of(pid_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Runs the agent as the foreground process does. Call it only in a child process of the test.
int run_agent_in_child(const JobOptions& options, pid_t foreground_process) {
  OriginalProcessState state{};
  ::sigprocmask(SIG_SETMASK, nullptr, &state.signal_mask);
  ::getrlimit(RLIMIT_NOFILE, &state.descriptor_limit);
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCONT})
    sigaddset(&handled, signal);
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  const Descriptor pidfd = pidfd_of(foreground_process);
  return run_agent({options, state, pidfd, signals});
}

// By default, the test is the foreground process of the agent.
std::function<int()> agent_of(const JobOptions& options, pid_t foreground_process = ::getpid()) {
  return [options, foreground_process] { return run_agent_in_child(options, foreground_process); };
}

// Starts a process that runs until it is killed.
pid_t start_sleeping_process() {
  const pid_t pid = ::fork();
  if (pid == 0)
    for (;;) ::pause();
  return pid;
}

// A pipe to which CallerReport writes.
struct ReportPipe {
  ReportPipe() {
    std::array<int, 2> ends{};
    CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
  // Call it after the agent has ended.
  std::string text() {
    write_end.reset();
    std::string received(4096, '\0');
    const ssize_t count = ::read(read_end.get(), received.data(), received.size());
    received.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return received;
  }

  Descriptor read_end;
  Descriptor write_end;
};

TEST(Agent, RunsAllWorkersAndReturnsTheFirstFailure) {
  LauncherInTest agent(agent_of(shell_job(2, "echo I am $FARANDOLE_RANK; exit 7")));
  EXPECT_EQ(agent.wait_for_end(), 7);
  EXPECT_THAT(agent.output(), HasSubstr("[0] I am 0\n"));
  EXPECT_THAT(agent.output(), HasSubstr("[1] I am 1\n"));
  EXPECT_THAT(agent.output(), HasSubstr("exited with code 7"));
}

TEST(Agent, ReportsWorkersToTheCaller) {
  ReportPipe report;
  JobOptions options = shell_job(1, "exit 3");
  options.caller.report = report.write_end.get();
  LauncherInTest agent(agent_of(options));
  EXPECT_EQ(agent.wait_for_end(), 3);
  const std::string text = report.text();
  EXPECT_THAT(text, StartsWith("started 0 "));
  const std::string pid = text.substr(0, text.find('\n')).substr(std::string("started 0 ").size());
  EXPECT_THAT(text, EndsWith("\nended 0 code 3\ncause 0 " + pid + "\n"));
}

TEST(Agent, CopiesTheOutputUnchanged) {
  ReportPipe output;
  ReportPipe error;
  JobOptions options = shell_job(1, "printf 'a\\nb'; printf 'c' >&2");
  options.output.shown_ranks = {1};
  options.caller.copies = {output.write_end.get(), error.write_end.get()};
  LauncherInTest agent(agent_of(options));
  EXPECT_EQ(agent.wait_for_end(), 0);
  EXPECT_EQ(agent.output(), "");
  EXPECT_EQ(output.text(), "a\nb");
  EXPECT_EQ(error.text(), "c");
}

TEST(Agent, WarnsIfNoWorkerHasCalledInit) {
  LauncherInTest two_workers(agent_of(shell_job(2, "true")));
  EXPECT_EQ(two_workers.wait_for_end(), 0);
  EXPECT_THAT(two_workers.output(), HasSubstr("no worker of this job called farandole's init()"));
  LauncherInTest one_worker(agent_of(shell_job(1, "true")));
  EXPECT_EQ(one_worker.wait_for_end(), 0);
  EXPECT_EQ(one_worker.output(), "");
  LauncherInTest failing_job(agent_of(shell_job(2, "exit 4")));
  EXPECT_EQ(failing_job.wait_for_end(), 4);
  EXPECT_THAT(failing_job.output(), Not(HasSubstr("init()")));
  JobOptions options = shell_job(2, "true");
  options.frameworks.jax = true;  // JAX communicates
  LauncherInTest jax_job(agent_of(options));
  EXPECT_EQ(jax_job.wait_for_end(), 0);
  EXPECT_THAT(jax_job.output(), Not(HasSubstr("init()")));
}

TEST(Agent, TellsWorkersWhereTheServersOfFrameworksListen) {
  JobOptions options = shell_job(2, "echo $TF_CONFIG $JAX_COORDINATOR_ADDRESS $JAX_PROCESS_ID");
  options.frameworks = {.tf_config = true, .jax = true};
  LauncherInTest agent(agent_of(options));
  EXPECT_EQ(agent.wait_for_end(), 0);
  const std::string address_pattern = R"(127\.0\.0\.1:[0-9]+)";
  const auto line_of = [&](const std::string& rank) {
    return R"(\{"cluster": \{"worker": \[")" + address_pattern + "\", \"" + address_pattern +
           R"("\]\}, "task": \{"type": "worker", "index": )" + rank + R"(\}\} )" + address_pattern +
           " " + rank + "\n";
  };
  EXPECT_THAT(agent.output(), ContainsRegex(line_of("0")));
  EXPECT_THAT(agent.output(), ContainsRegex(line_of("1")));
}

// The file is executable, so only execve() finds that it is not a program.
TEST(Agent, AProgramThatCannotBeExecutedFailsTheJob) {
  std::string path = "/tmp/farandole-agent-test-XXXXXX";
  Descriptor(::mkstemp(path.data())).reset();
  std::ofstream(path, std::ios::binary) << std::string("\x7f\0nonsense", 10);
  ::chmod(path.c_str(), 0755);
  JobOptions options = shell_job(2, "");
  options.command = {path};
  LauncherInTest agent(agent_of(options));
  EXPECT_EQ(agent.wait_for_end(), 126);
  EXPECT_EQ(agent.output(), "farandole: cannot execute `" + path + "`: Exec format error\n");
  ::unlink(path.c_str());
}

// The second worker fails between fork and exec, after the first one has started.
TEST(Agent, AWorkerThatFailsBeforeExecEndsTheOthers) {
  constexpr int kNotOpen = 1'000'000;
  ReportPipe report;
  const Descriptor channel(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  JobOptions options = shell_job(2, "exec sleep 1000");
  options.caller.report = report.write_end.get();
  options.caller.channels = {channel.get(), kNotOpen};
  LauncherInTest agent(agent_of(options));
  EXPECT_EQ(agent.wait_for_end(), 126);
  EXPECT_EQ(agent.output(), "farandole: cannot execute `sh`: Bad file descriptor\n");
  const std::string text = report.text();
  ASSERT_THAT(text, StartsWith("started 0 "));
  EXPECT_TRUE(is_gone(std::atoi(text.c_str() + std::string("started 0 ").size()))) << text;
}

TEST(Agent, TooFewDescriptorsPreventTheStart) {
  LauncherInTest agent([options = shell_job(64, "echo started"), foreground_process = ::getpid()] {
    const rlimit low_limit{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &low_limit);
    return run_agent_in_child(options, foreground_process);
  });
  EXPECT_EQ(agent.wait_for_end(), 1);
  EXPECT_THAT(agent.output(), StartsWith("farandole: the launcher of 64 workers"));
  EXPECT_THAT(agent.output(), Not(HasSubstr("started")));
}

TEST(Agent, PassesSignalsOnToItsWorkers) {
  LauncherInTest agent(agent_of(shell_job(1, waiting_script("trap 'echo got it; exit 5' USR1"))));
  agent.read_until("is ready");
  agent.send_signal(SIGUSR1);
  EXPECT_EQ(agent.wait_for_end(), 5);
  EXPECT_THAT(agent.output(), HasSubstr("[0] got it\n"));
}

// A job of two workers. When their launcher tells them to end, they run `end_script`. Before that
// message, they get another message, which says only that they may outlive their launcher.
JobOptions job_that_ends_with(const std::string& end_script) {
  JobOptions options =
      shell_job(2,
                "next() { dd bs=4096 count=1 <&$FARANDOLE_LAUNCHER_DESCRIPTOR 2>/dev/null; }; "
                "next >/dev/null; echo worker $$ is ready; echo heard: $(next | tr -cd ' -~'); " +
                    end_script);
  options.command.front() = "bash";  // dash knows no descriptors above 9
  options.elastic.emplace();
  return options;
}

TEST(Agent, WorkersOfAnElasticJobEndByThemselvesIfTheForegroundProcessIsKilled) {
  const pid_t foreground_process = start_sleeping_process();
  LauncherInTest agent(agent_of(job_that_ends_with("exit 75"), foreground_process));
  agent.read_until("[0] worker ");
  agent.read_until("[1] worker ");
  ::kill(foreground_process, SIGKILL);
  EXPECT_EQ(agent.wait_for_end(), 75);
  EXPECT_THAT(agent.output(), ContainsRegex("\\[0\\] heard: .*the foreground process"));
  EXPECT_THAT(agent.output(), ContainsRegex("\\[1\\] heard: .*the foreground process"));
}

TEST(Agent, ASignalStillEndsWorkersThatEndByThemselves) {
  const pid_t foreground_process = start_sleeping_process();
  LauncherInTest agent(agent_of(job_that_ends_with("exec sleep 1000"), foreground_process));
  agent.read_until("[0] worker ");
  agent.read_until("[1] worker ");
  ::kill(foreground_process, SIGKILL);
  agent.read_until("[0] heard");
  agent.read_until("[1] heard");
  agent.send_signal(SIGTERM);
  EXPECT_EQ(agent.wait_for_end(), 128 + SIGTERM);
}

TEST(Agent, ASignalThatEndsTheJobDeterminesTheExitCode) {
  LauncherInTest agent(agent_of(shell_job(1, waiting_script("trap 'echo bye; exit 0' TERM"))));
  agent.read_until("is ready");
  agent.send_signal(SIGTERM);
  EXPECT_EQ(agent.wait_for_end(), 128 + SIGTERM);
  EXPECT_THAT(agent.output(), HasSubstr("SIGTERM passed on to rank 0"));
  EXPECT_THAT(agent.output(), HasSubstr("[0] bye\n"));
  EXPECT_THAT(agent.output(), HasSubstr("the job has ended after SIGTERM"));
}

TEST(Agent, KillsWorkersAfterTheGraceTime) {
  JobOptions options = shell_job(1, waiting_script("trap '' TERM"));
  options.grace = std::chrono::seconds(0);
  LauncherInTest agent(agent_of(options));
  agent.read_until("is ready");
  agent.send_signal(SIGTERM);
  EXPECT_EQ(agent.wait_for_end(), 128 + SIGTERM);
  EXPECT_THAT(agent.output(), HasSubstr("rank 0 did not end within 0 s; killing"));
  EXPECT_THAT(agent.output(), HasSubstr("rank 0: ended with SIGKILL"));
  EXPECT_TRUE(is_gone(agent.number_after("worker ")));
}

TEST(Agent, EndsProcessesThatWorkersLeaveBehind) {
  LauncherInTest agent(agent_of(shell_job(1, "setsid sleep 1000 & echo child $!; exit 3")));
  EXPECT_EQ(agent.wait_for_end(), 3);
  EXPECT_TRUE(is_gone(agent.number_after("child ")));
}

// While a process traces a worker, only the tracing process can reap the worker.
TEST(Agent, NoticesTheEndOfATracedWorker) {
  LauncherInTest agent(agent_of(shell_job(
      2,
      "trap 'echo heard' USR1; sleep 1000 & echo rank $FARANDOLE_RANK is $$, ready; wait; wait")));
  for (const char* rank : {"rank 0 is ", "rank 1 is "}) agent.read_until(rank);
  agent.read_until("ready\n");
  const pid_t traced_worker = agent.number_after("rank 0 is ");
  if (::ptrace(PTRACE_SEIZE, traced_worker, nullptr, nullptr) != 0)
    GTEST_SKIP() << "this process may not trace others: " << std::strerror(errno);
  ::kill(traced_worker, SIGKILL);
  siginfo_t end{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(traced_worker), &end, WEXITED | WNOWAIT | __WALL), 0);
  agent.send_signal(SIGUSR1);
  agent.read_until("heard");  // by now, the launcher has tried to reap the traced worker
  EXPECT_EQ(::waitpid(traced_worker, nullptr, __WALL), traced_worker);
  EXPECT_EQ(agent.wait_for_end(), 128 + SIGKILL);
  EXPECT_THAT(agent.output(), HasSubstr("killed by signal 9 (SIGKILL)"));
}

TEST(Agent, ReportsThatAWorkerIsStoppedAndContinues) {
  LauncherInTest agent(agent_of(shell_job(1, waiting_script("trap 'exit 0' USR1; kill -STOP $$"))));
  agent.read_until("is stopped (SIGSTOP)");
  ::kill(agent.number_after("kill -CONT "), SIGCONT);
  agent.read_until(") goes on\n");
  agent.send_signal(SIGUSR1);
  EXPECT_EQ(agent.wait_for_end(), 0);
}

void wait_until_stopped(pid_t process) {
  int status = 0;
  while (status != 'T') {  // the state of the process: T means stopped
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    status = line.at(line.rfind(')') + 2);
  }
}

TEST(Agent, AStoppedJobIsNotReported) {
  LauncherInTest agent(agent_of(shell_job(1, waiting_script("trap 'exit 0' USR1"))));
  agent.read_until("is ready");
  agent.send_signal(SIGTSTP);
  wait_until_stopped(agent.number_after("worker "));
  agent.send_signal(SIGCONT);
  agent.send_signal(SIGUSR1);
  EXPECT_EQ(agent.wait_for_end(), 0);
  EXPECT_THAT(agent.output(), Not(HasSubstr("stopped")));
}

TEST(Agent, EndsTheJobWhenTheForegroundProcessIsKilled) {
  const pid_t foreground_process = start_sleeping_process();
  LauncherInTest agent(
      agent_of(shell_job(1, waiting_script("trap '' TERM HUP")), foreground_process));
  agent.read_until("is ready");
  ::kill(foreground_process, SIGKILL);
  agent.wait_for_end();
  EXPECT_TRUE(is_gone(agent.number_after("worker ")));
}

TEST(Agent, TheEndOfTheCallerActsLikeSighup) {
  const pid_t caller = start_sleeping_process();
  const Descriptor pidfd = pidfd_of(caller);
  JobOptions options = shell_job(1, waiting_script("trap 'echo hung up; exit 0' HUP"));
  options.caller.pidfd = pidfd.get();
  LauncherInTest agent(agent_of(options));
  agent.read_until("is ready");
  ::kill(caller, SIGKILL);
  EXPECT_EQ(agent.wait_for_end(), 128 + SIGHUP);
  EXPECT_THAT(agent.output(), HasSubstr("[0] hung up\n"));
}

// The options of two launchers on this host that start one job.
class TwoNodeJob {
 public:
  TwoNodeJob() {
    ::unlink(secret_path_.c_str());
    EXPECT_EQ(make_secret_file(secret_path_), Status());
  }
  ~TwoNodeJob() { ::unlink(secret_path_.c_str()); }
  TwoNodeJob(const TwoNodeJob&) = delete;
  TwoNodeJob& operator=(const TwoNodeJob&) = delete;

  JobOptions node(int number, const std::string& script) const {
    JobOptions options = shell_job(1, script);
    NodeOptions& nodes = options.nodes.emplace();
    nodes.endpoint = {.host = "127.0.0.1", .port = port_};
    nodes.nodes = 2;
    nodes.node = number;
    nodes.start_timeout = std::chrono::seconds(60);
    options.secret = {.path = secret_path_};
    return options;
  }

 private:
  static std::uint16_t free_port() {
    const auto reserved = ReservedPort::create();
    EXPECT_TRUE(reserved.ok());
    return static_cast<std::uint16_t>(reserved->number());
  }

  std::string secret_path_ = "/tmp/farandole-agent-test-secret." + std::to_string(::getpid());
  std::uint16_t port_ = free_port();
};

TEST(AgentOfANode, RunsItsPartOfTheJob) {
  const TwoNodeJob job;
  LauncherInTest node_0(agent_of(job.node(0, "echo $FARANDOLE_RANK of $FARANDOLE_SIZE")));
  LauncherInTest node_1(agent_of(job.node(1, "echo $FARANDOLE_RANK of $FARANDOLE_SIZE")));
  EXPECT_EQ(node_0.wait_for_end(), 0);
  EXPECT_EQ(node_1.wait_for_end(), 0);
  EXPECT_THAT(node_0.output(), HasSubstr("[0] 0 of 2\n"));
  EXPECT_THAT(node_1.output(), HasSubstr("[1] 1 of 2\n"));
}

TEST(AgentOfANode, AFailureOnOneNodeEndsTheJobOnBoth) {
  const TwoNodeJob job;
  LauncherInTest node_0(agent_of(job.node(0, "exec sleep 1000")));
  LauncherInTest node_1(agent_of(job.node(1, "exit 7")));
  EXPECT_EQ(node_0.wait_for_end(), 7);
  EXPECT_EQ(node_1.wait_for_end(), 7);
  EXPECT_THAT(node_0.output(), HasSubstr("has exited with code 7"));
  EXPECT_THAT(node_0.output(), HasSubstr("farandole: the job has failed"));
}

TEST(AgentOfANode, ASignalEndsItWhileItWaitsForTheOtherNode) {
  const TwoNodeJob job;
  LauncherInTest agent(agent_of(job.node(0, "echo started")));
  agent.read_until("waiting for node 1");
  agent.send_signal(SIGTERM);
  EXPECT_EQ(agent.wait_for_end(), 128 + SIGTERM);
  EXPECT_THAT(agent.output(), HasSubstr("SIGTERM has ended the job before all nodes had joined"));
  EXPECT_THAT(agent.output(), Not(HasSubstr("started")));
}

TEST(AgentOfANode, ASignalAfterTheEndOfItsWorkersEndsTheOtherNode) {
  for (const int ended_node : {0, 1}) {
    const TwoNodeJob job;
    LauncherInTest ended(agent_of(job.node(ended_node, "echo done")));
    LauncherInTest running(
        agent_of(job.node(1 - ended_node, waiting_script("trap 'echo got it; exit 0' TERM"))));
    running.read_until("is ready");
    ended.read_until("waiting for those of the other nodes");
    ended.send_signal(SIGTERM);
    EXPECT_EQ(ended.wait_for_end(), 128 + SIGTERM);
    EXPECT_EQ(running.wait_for_end(), 128 + SIGTERM);
    EXPECT_THAT(running.output(), HasSubstr("got it\n"));
  }
}

TEST(AgentOfANode, ASignalAtAnotherNodeContinuesStoppedWorkers) {
  const TwoNodeJob job;
  LauncherInTest node_0(
      agent_of(job.node(0, waiting_script("trap 'echo continued; exit 0' TERM"))));
  LauncherInTest node_1(agent_of(job.node(1, waiting_script("trap 'exit 0' TERM"))));
  node_0.read_until("is ready");
  node_1.read_until("is ready");
  node_0.send_signal(SIGTSTP);
  wait_until_stopped(node_0.number_after("worker "));
  node_1.send_signal(SIGTERM);
  EXPECT_EQ(node_0.wait_for_end(), 128 + SIGTERM);
  EXPECT_EQ(node_1.wait_for_end(), 128 + SIGTERM);
  EXPECT_THAT(node_0.output(), HasSubstr("continued"));
}

TEST(AgentOfANode, AProgramThatNode0CannotExecuteDeterminesTheExitCode) {
  const TwoNodeJob job;
  JobOptions options = job.node(0, "");
  options.command = {"/dev/null"};
  LauncherInTest node_0(agent_of(options));
  LauncherInTest node_1(agent_of(job.node(1, "exec sleep 1000")));
  EXPECT_EQ(node_0.wait_for_end(), 126);
  EXPECT_EQ(node_1.wait_for_end(), 126);
}

TEST(AgentOfANode, TheEndOfTheForegroundProcessEndsItWhileItWaits) {
  const TwoNodeJob job;
  const pid_t foreground_process = start_sleeping_process();
  LauncherInTest agent(agent_of(job.node(1, "echo started"), foreground_process));
  agent.read_until("waiting for node 0");
  ::kill(foreground_process, SIGKILL);
  EXPECT_EQ(agent.wait_for_end(), 1);
  EXPECT_THAT(agent.output(), HasSubstr("the launcher was killed"));
  EXPECT_THAT(agent.output(), Not(HasSubstr("started")));
}

TEST(AgentOfANode, TooManyReservedPortsPreventTheStart) {
  const TwoNodeJob job;
  JobOptions options = job.node(1, "echo started");
  options.workers = 60;
  options.frameworks.tf_config = true;
  LauncherInTest agent([options, foreground_process = ::getpid()] {
    const rlimit low_limit{.rlim_cur = 400, .rlim_max = 400};
    ::setrlimit(RLIMIT_NOFILE, &low_limit);
    return run_agent_in_child(options, foreground_process);
  });
  EXPECT_EQ(agent.wait_for_end(), 1);
  EXPECT_THAT(agent.output(), HasSubstr("--tf-config: the launcher of 60 workers"));
}

TEST(Agent, LostOutputIsAFailure) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  LauncherInTest agent(
      [options = shell_job(1, "echo lost"), &full, foreground_process = ::getpid()] {
        ::dup2(full.get(), STDOUT_FILENO);
        return run_agent_in_child(options, foreground_process);
      });
  EXPECT_EQ(agent.wait_for_end(), 1);
  EXPECT_THAT(agent.output(), HasSubstr("the standard output could not be written"));
}

}  // namespace
}  // namespace farandole
