#include "workers/worker_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/cores.h"
#include "base/no_descriptors_in_test.h"
#include "base/poller.h"
#include "output/worker_stream.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OriginalProcessState own_state() {
  OriginalProcessState state{};
  sigprocmask(SIG_SETMASK, nullptr, &state.signal_mask);
  ::getrlimit(RLIMIT_NOFILE, &state.descriptor_limit);
  return state;
}

struct EndedProcess {
  int status = 0;  // from waitpid()
  std::string output;
};

EndedProcess run(const std::vector<std::string>& command,
                 const std::vector<std::string>& environment, WorkerStream stream) {
  const OriginalProcessState state = own_state();
  const Descriptor rendezvous(::memfd_create("rendezvous", MFD_CLOEXEC));
  const Descriptor flight_record(::memfd_create("flight-record", MFD_CLOEXEC));
  const Descriptor descriptor_of_another_worker(::memfd_create("of-another", MFD_CLOEXEC));
  auto worker = start_process({.command = command,
                               .environment = environment,
                               .inherited = {rendezvous.get(), flight_record.get()},
                               .standard_output = stream.theirs.get(),
                               .standard_error = stream.theirs.get(),
                               .original_state = state});
  EXPECT_TRUE(worker.ok()) << worker.status().message();
  EndedProcess result;
  if (!worker.ok()) return result;
  stream.theirs.reset();
  for (StreamRead part; !part.ended; result.output += part.bytes) {
    pollfd entry{stream.ours.get(), POLLIN, 0};
    ::poll(&entry, 1, -1);
    part = read_available(stream.ours);
  }
  EXPECT_EQ(::waitpid(worker->pid, &result.status, 0), worker->pid);
  return result;
}

EndedProcess run_shell(const std::string& script, WorkerStream stream) {
  return run({"sh", "-c", script}, {"PATH=/usr/bin:/bin", "WHO=me"}, std::move(stream));
}

TEST(WorkerProcess, GetsItsEnvironmentAndOutput) {
  const EndedProcess result =
      run_shell("echo $WHO; echo err >&2; exit 3", WorkerStream::make_pipe().value());
  EXPECT_EQ(result.output, "me\nerr\n");
  EXPECT_EQ(WEXITSTATUS(result.status), 3);
}

TEST(WorkerProcess, HasEmptyInputAndItsOwnProcessGroup) {
  const EndedProcess result = run_shell("cat; test $(ps -o pgid= -p $$) = $$ && echo alone",
                                        WorkerStream::make_pipe().value());
  EXPECT_EQ(result.output, "alone\n");
}

TEST(WorkerProcess, InheritsOnlyItsOwnDescriptors) {
  // In the worker, only the descriptors 1 and 2 refer to our pipe.
  const EndedProcess result = run_shell(
      "readlink /proc/$$/fd/* | grep -cF $(readlink /proc/$$/fd/1); "
      "readlink /proc/$$/fd/* | grep memfd: | sort",
      WorkerStream::make_pipe().value());
  EXPECT_EQ(result.output, "2\n/memfd:flight-record (deleted)\n/memfd:rendezvous (deleted)\n");
}

TEST(WorkerProcess, SeesATerminalOfTheGivenWidth) {
  winsize size{};
  size.ws_col = 77;
  size.ws_row = 20;
  const EndedProcess result = run_shell("test -t 1 && stty size <&1; printf 'a\\n'",
                                        WorkerStream::make_terminal(size).value());
  EXPECT_EQ(result.output, "20 77\na\n");
}

TEST(WorkerProcess, AFailedExecIsAnError) {
  const OriginalProcessState state = own_state();
  const WorkerStream stream = WorkerStream::make_pipe().value();
  const std::vector<std::string> command{"/dev/null"};
  const auto worker = start_process({.command = command,
                                     .environment = {},
                                     .inherited = {},
                                     .standard_output = stream.theirs.get(),
                                     .standard_error = stream.theirs.get(),
                                     .original_state = state});
  EXPECT_EQ(worker.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(worker.status().message(), HasSubstr("/dev/null"));
}

Result<StartedProcess> start_bound(const std::vector<std::string>& command,
                                   const std::vector<int>& hardware_threads,
                                   const WorkerStream& stream) {
  const OriginalProcessState state = own_state();
  return start_process({.command = command,
                        .environment = {},
                        .inherited = {},
                        .standard_output = stream.theirs.get(),
                        .standard_error = stream.theirs.get(),
                        .hardware_threads = hardware_threads,
                        .original_state = state});
}

TEST(WorkerProcess, IsBoundBeforeItsProgramBegins) {
  const std::vector<int> own_threads = usable_hardware_threads();
  const WorkerStream stream = WorkerStream::make_pipe().value();
  const auto worker = start_bound({"sleep", "100"}, {own_threads.back()}, stream);
  ASSERT_TRUE(worker.ok()) << worker.status().message();
  EXPECT_THAT(usable_hardware_threads(worker->pid), ElementsAre(own_threads.back()));
  EXPECT_EQ(usable_hardware_threads(), own_threads) << "the launcher is not bound";
  ::kill(worker->pid, SIGKILL);
  ::waitpid(worker->pid, nullptr, 0);
}

TEST(WorkerProcess, AFailedBindingIsAnError) {
  const WorkerStream stream = WorkerStream::make_pipe().value();
  const auto worker = start_bound({"sleep", "100"}, {60'000, 60'001}, stream);
  EXPECT_EQ(worker.status().code(), StatusCode::kStop);
  EXPECT_THAT(worker.status().message(),
              HasSubstr("cannot bind a worker to the hardware threads 60000-60001: Invalid"));
  EXPECT_THAT(worker.status().message(), HasSubstr("--bind-to none"));
}

TEST(WorkerProcess, FindsProgramsAsShellsDo) {
  EXPECT_FALSE(check_program("sh", "/usr/bin:/bin").has_value());
  EXPECT_FALSE(check_program("/bin/sh", "").has_value());
  EXPECT_EQ(check_program("no-such-program", "/usr/bin:/bin")->exit_code, 127);
  EXPECT_EQ(check_program("/no/such/program", "/usr/bin")->exit_code, 127);
  EXPECT_EQ(check_program("/etc/passwd", "")->exit_code, 126);
  EXPECT_EQ(check_program("/etc", "")->exit_code, 126);
  EXPECT_THAT(check_program("/etc", "")->message, HasSubstr("`/etc` is a folder"));
  EXPECT_EQ(check_program("etc", "/")->exit_code, 127);
  EXPECT_THAT(check_program("train.py", "/bin")->message, HasSubstr("python train.py"));
}

TEST(WorkerProcess, TooFewDescriptorsAreReported) {
  const OriginalProcessState state = own_state();
  const NoFreeDescriptors no_free_descriptors;
  const auto worker = start_process({.command = {"true"},
                                     .environment = {},
                                     .inherited = {},
                                     .standard_output = 1,
                                     .standard_error = 2,
                                     .original_state = state});
  EXPECT_EQ(worker.status().code(), StatusCode::kStop);
  EXPECT_THAT(worker.status().message(), HasSubstr("cannot start a worker: pipe2"));
  const auto stream = WorkerStream::make_pipe();
  EXPECT_EQ(stream.status().code(), StatusCode::kStop);
  EXPECT_THAT(stream.status().message(),
              HasSubstr("cannot make a pipe or terminal for a worker's output"));
  const auto poller = Poller::create();
  EXPECT_EQ(poller.status().code(), StatusCode::kStop);
  EXPECT_THAT(poller.status().message(), HasSubstr("epoll_create1 failed"));
}

}  // namespace
}  // namespace farandole
