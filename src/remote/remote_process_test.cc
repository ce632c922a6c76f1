#include "remote/remote_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/no_descriptors_in_test.h"
#include "output/line_splitter.h"
#include "output/worker_stream.h"
#include "remote/ssh_in_test.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kGreeting = "hello, version ";

// A process on a host, and what it writes.
class RemoteProcessTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kEnd = 2;
  static constexpr std::uint64_t kInput = 3;

  RemoteProcessTest() {
    ::sigemptyset(&original_state_.signal_mask);
    ::getrlimit(RLIMIT_NOFILE, &original_state_.descriptor_limit);
    ::signal(SIGPIPE, SIG_IGN);
  }

  Status try_start(const std::string& host, const std::string& script) {
    process_ = std::make_unique<RemoteProcess>(HostEntry{.name = host, .user = ""}, poller_,
                                               RemoteProcess::Tags{.end = kEnd, .input = kInput});
    std::array<Descriptor, 2> process_ends;
    for (std::size_t stream = 0; stream < 2; ++stream) {
      auto ends = *WorkerStream::make_pipe();
      our_ends_.at(stream) = std::move(ends.ours);
      process_ends.at(stream) = std::move(ends.theirs);
      poller_.add(our_ends_.at(stream).get(), Poller::Interest::kReading, stream);
    }
    return process_->start({.words = {"/bin/sh", "-c", script}, .greeting = kGreeting},
                           process_ends[0].get(), process_ends[1].get(), original_state_);
  }

  void start(const std::string& host, const std::string& script) {
    const Status started = try_start(host, script);
    ASSERT_TRUE(started.ok()) << started.message();
    EXPECT_TRUE(process_->is_running());
  }

  // Reads and writes until `done`, or until the process has ended.
  template <class Done>
  void serve_until(Done done) {
    while (!done() && process_->is_running())
      for (const std::uint64_t tag : poller_.wait(std::nullopt)) serve(tag);
  }
  void serve(std::uint64_t tag) {
    if (tag == kInput) process_->input_writable();
    if (tag < 2) read_from(tag);
    if (tag != kEnd || !process_->has_ended()) return;
    EXPECT_TRUE(process_->reap());
    for (const std::size_t stream : {0U, 1U}) read_from(stream);
  }
  void serve() {
    serve_until([] { return false; });
  }

  void read_from(std::size_t stream) {
    while (our_ends_.at(stream).valid()) {
      const StreamRead read = read_available(our_ends_.at(stream));
      for (const OutputPiece& piece : splitters_.at(stream).push(read.bytes))
        if (process_->receive_line(stream, piece.text) == RemoteProcess::LineKind::kOfProgram)
          lines_.at(stream).push_back(piece.text);
      if (read.ended) {
        poller_.remove(our_ends_.at(stream).get());
        our_ends_.at(stream).reset();
      }
      if (read.bytes.empty()) return;
    }
  }

  SshInTest ssh_;
  OriginalProcessState original_state_{};
  Poller poller_ = *Poller::create();
  std::unique_ptr<RemoteProcess> process_;
  std::array<Descriptor, 2> our_ends_;
  std::array<LineSplitter, 2> splitters_;
  std::array<std::vector<std::string>, 2> lines_;  // the lines of the program, by stream
};

TEST_F(RemoteProcessTest, ATracedProcessIsReapedLater) {
  start("localhost", "echo hello, version 1; echo $$; read line");
  serve_until([this] { return !lines_[0].empty(); });
  const pid_t pid = std::stoi(lines_[0].front());
  // The tracer must not be the parent of the process, because a parent could reap it.
  std::array<int, 2> begun_pipe{};
  std::array<int, 2> over_pipe{};
  ASSERT_EQ(::pipe(begun_pipe.data()) + ::pipe(over_pipe.data()), 0);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    char byte = ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 'y' : 'n';
    if (::write(begun_pipe[1], &byte, 1) == 1) (void)::read(over_pipe[0], &byte, 1);
    ::_exit(0);
  }
  char answer = 0;
  EXPECT_EQ(::read(begun_pipe[0], &answer, 1), 1);
  if (answer == 'y') {
    process_->signal(SIGKILL);
    while (!process_->has_ended()) poller_.wait(std::nullopt);
    EXPECT_FALSE(process_->reap());
    EXPECT_TRUE(process_->must_be_reaped());
  }
  EXPECT_EQ(::write(over_pipe[1], "x", 1), 1);
  EXPECT_EQ(::waitpid(tracer, nullptr, 0), tracer);
  for (const int end : {begun_pipe[0], begun_pipe[1], over_pipe[0], over_pipe[1]}) ::close(end);
  if (answer != 'y') GTEST_SKIP() << "a process may not trace others here";
  EXPECT_TRUE(process_->reap());
  EXPECT_FALSE(process_->must_be_reaped());
  EXPECT_EQ(process_->end()->signal, SIGKILL);
}

TEST_F(RemoteProcessTest, OnTheOwnHostTheProgramRunsDirectly) {
  start("localhost", "echo hello, version 1.2; echo one; exit 3");
  serve();
  EXPECT_TRUE(process_->is_own_host());
  EXPECT_TRUE(process_->has_greeted());
  EXPECT_EQ(process_->version(), "1.2");
  EXPECT_THAT(lines_[0], ElementsAre("one"));
  EXPECT_EQ(process_->end().value().code, 3);
  EXPECT_EQ(ssh_.arguments(), "");
  EXPECT_TRUE(process_->variables().empty());  // the process inherits them
}

TEST_F(RemoteProcessTest, OnOtherHostsSshRunsIt) {
  start("owl", "echo hello, version 1.2; echo \"it's $0\"; kill -KILL $$");
  serve();
  EXPECT_FALSE(process_->is_own_host());
  EXPECT_THAT(lines_[0], ElementsAre("it's /bin/sh"));
  EXPECT_EQ(process_->end().value().signal, SIGKILL);
  EXPECT_THAT(ssh_.arguments(),
              AllOf(StartsWith("-T -o BatchMode=yes"), HasSubstr(" -- owl exec ")));
}

TEST_F(RemoteProcessTest, LinesBeforeTheGreetingAreKeptAndNotShown) {
  ssh_.set_host_script("owl", "echo 'Welcome to owl'; printf 'one\\033[2J\\n' >&2");
  start("owl", "echo; echo hello, version 1; echo shown; echo hello, version 1 >&2; echo too >&2");
  serve();
  EXPECT_THAT(process_->kept_lines(),
              ::testing::UnorderedElementsAre("Welcome to owl", "one\\x1b[2J"));
  EXPECT_THAT(lines_[0], ElementsAre("shown"));
  EXPECT_THAT(lines_[1], ElementsAre("too"));
}

TEST_F(RemoteProcessTest, OnlyTheFirstLinesAreKept) {
  start("localhost", "for i in $(seq 100); do echo line $i; done");
  serve();
  EXPECT_EQ(process_->kept_lines().size(), kKeptLinesMax);
  EXPECT_EQ(process_->kept_lines().back(), "line 20");
}

TEST_F(RemoteProcessTest, AnErrorOfSshIsTheReasonOfTheFailure) {
  const std::string refused = "ssh: connect to host owl port 22: Connection refused";
  ssh_.fail("owl", refused);
  start("owl", "echo never");
  serve();
  EXPECT_FALSE(process_->has_greeted());
  EXPECT_EQ(process_->end().value().code, kSshError);
  EXPECT_EQ(process_->why_ended(), refused);
  EXPECT_EQ(process_->advice(),
            "check that sshd runs on that host, and give its port with --ssh-port");
}

TEST_F(RemoteProcessTest, AnEndWithoutAMessageIsDescribed) {
  ssh_.set_host_script("owl", "exit 255");
  start("owl", "echo never");
  serve();
  EXPECT_EQ(process_->why_ended(), "`ssh` has exited with code 255 without a message");
  EXPECT_EQ(process_->advice(), "try `ssh -- owl true`");
  start("localhost", "kill -TERM $$");
  serve();
  EXPECT_EQ(process_->why_ended(), "`/bin/sh` was killed by signal 15 (SIGTERM) without a message");
}

TEST_F(RemoteProcessTest, ASilentHostIsDescribedWithWhatItHasShown) {
  ssh_.set_host_script("owl", "echo 'a question?'; exec sleep 1000");
  start("owl", "echo never");
  EXPECT_EQ(process_->why_silent("there is no answer"), "there is no answer");
  serve_until([this] { return !process_->kept_lines().empty(); });
  EXPECT_EQ(process_->why_silent("there is no answer"), "a question?; there is no answer");
  EXPECT_EQ(process_->advice(), "try `ssh -- owl true`");
  process_->signal(SIGTERM);
  serve();
  EXPECT_EQ(process_->end().value().signal, SIGTERM);
}

TEST_F(RemoteProcessTest, TheSecretAndTheOrdersArriveInTheInput) {
  const std::string input_copy = ssh_.folder() + "/input";
  start("owl", "head -c 1000039 >'" + input_copy + "'");
  const JobSecret secret = *JobSecret::generate();
  ASSERT_TRUE(process_->send_secret(secret).ok());
  const std::string order(1'000'000, 'x');  // more than what a pipe holds
  ASSERT_TRUE(process_->send(order).ok());
  ASSERT_TRUE(process_->send("the end").ok());
  serve();
  EXPECT_EQ(process_->end().value().code, 0);
  std::ifstream file(input_copy, std::ios::binary);
  const std::string input(std::istreambuf_iterator<char>(file), {});
  ASSERT_EQ(input.size(), kSecretBytes + order.size() + 7);
  EXPECT_EQ(input.substr(kSecretBytes), order + "the end");
  EXPECT_THAT(ssh_.arguments(), Not(HasSubstr("xxx")));
}

TEST_F(RemoteProcessTest, NoBytesAreSentAfterTheEndOfTheInput) {
  start("owl", "test -z \"$(cat)\"");
  process_->close_input();
  EXPECT_EQ(process_->send_secret(*JobSecret::generate()), Status());
  EXPECT_EQ(process_->send("order"), Status());
  serve();
  EXPECT_EQ(process_->end().value().code, 0);
}

TEST_F(RemoteProcessTest, UnreadBytesAreDropped) {
  start("owl", "exec <&-; echo hello, version 1; sleep 0.1");
  serve_until([this] { return process_->has_greeted(); });
  EXPECT_TRUE(process_->send(std::string(1'000'000, 'x')).ok());
  serve();
  EXPECT_EQ(process_->end().value().code, 0);
  EXPECT_TRUE(process_->send("more").ok());  // the input is closed
}

TEST_F(RemoteProcessTest, TheInputCanBeReplaced) {
  start("owl", "cat");
  ASSERT_TRUE(process_->send(std::string(200'000, 'x')).ok());
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const Descriptor read_end(pipe[0]);
  auto [input, unsent] = process_->replace_input(Descriptor(pipe[1]));
  EXPECT_GT(unsent.size(), 0U);
  EXPECT_LT(unsent.size(), 200'000U);
  ASSERT_TRUE(process_->send("new").ok());
  std::array<char, 16> bytes{};
  EXPECT_EQ(::read(read_end.get(), bytes.data(), bytes.size()), 3);
  input.reset();
  serve();
  EXPECT_EQ(process_->end().value().code, 0);
}

TEST_F(RemoteProcessTest, VariablesOfTheSessionStayHere) {
  ::setenv("FARANDOLE_TEST_VARIABLE", "1", 1);
  ::setenv("SSH_AUTH_SOCK", "/tmp/socket", 1);
  start("owl", "true");
  const auto variables = process_->variables();
  EXPECT_THAT(variables, ::testing::Contains("FARANDOLE_TEST_VARIABLE=1"));
  EXPECT_THAT(variables, Not(::testing::Contains(StartsWith("SSH_AUTH_SOCK="))));
  ::unsetenv("FARANDOLE_TEST_VARIABLE");
  ::unsetenv("SSH_AUTH_SOCK");
  serve();
}

TEST_F(RemoteProcessTest, AProgramThatDoesNotExistIsAnError) {
  process_ = std::make_unique<RemoteProcess>(HostEntry{.name = "localhost", .user = ""}, poller_,
                                             RemoteProcess::Tags{});
  const Status started =
      process_->start({.words = {"/does/not/exist"}, .greeting = kGreeting}, 1, 2, original_state_);
  EXPECT_EQ(started.code(), StatusCode::kFixCall);
  EXPECT_THAT(started.message(), HasSubstr("/does/not/exist"));
  EXPECT_FALSE(process_->is_running());
  EXPECT_FALSE(process_->has_ended());
  EXPECT_FALSE(process_->reap());
}

TEST_F(RemoteProcessTest, WithoutAFreeDescriptorTheStartFails) {
  process_ = std::make_unique<RemoteProcess>(HostEntry{.name = "localhost", .user = ""}, poller_,
                                             RemoteProcess::Tags{});
  Status started;
  {
    const NoFreeDescriptors no_free_descriptors;
    started =
        process_->start({.words = {"/bin/true"}, .greeting = kGreeting}, 1, 2, original_state_);
  }
  EXPECT_EQ(started.code(), StatusCode::kStop);
  EXPECT_THAT(started.message(), StartsWith("pipe2: Too many open files"));
}

TEST_F(RemoteProcessTest, AProcessThatCannotBeWatchedIsKilled) {
  const Descriptor null_device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null_device.get(), poller_.descriptor());  // now the poller cannot watch anything
  const Status started = try_start("owl", "sleep 1000");
  EXPECT_EQ(started.code(), StatusCode::kStop);
  EXPECT_THAT(started.message(), StartsWith("it cannot be watched; the limit is in "));
  EXPECT_FALSE(process_->is_running());
}

TEST_F(RemoteProcessTest, AProcessThatStillRunsIsKilledAtTheEnd) {
  start("owl", "echo hello, version 1; echo $$; exec sleep 1000");
  serve_until([this] { return !lines_[0].empty(); });
  const pid_t pid = std::stoi(lines_[0].at(0));
  process_.reset();
  EXPECT_NE(::kill(pid, 0), 0);
}

TEST(Greeting, IsTheSameOnBothStreams) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const bool written = write_greeting("hello, version 1");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "\nhello, version 1\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "\nhello, version 1\n");
  EXPECT_TRUE(written);
}

}  // namespace
}  // namespace farandole
