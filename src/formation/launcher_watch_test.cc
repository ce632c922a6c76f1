#include "formation/launcher_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "rendezvous/launcher_notice.h"
#include "transport/unix_socket.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TimePoint test_deadline() { return std::chrono::steady_clock::now() + seconds(60); }

// A launcher and its socket to a worker.
struct Launcher {
  Launcher() {
    auto sockets = UnixSocket::make_pair();
    CHECK(sockets.ok(), "socketpair");
    launcher_socket.emplace(std::move(sockets->first));
    worker_socket = sockets->second.take_descriptor();
  }
  void send_notice(const LauncherNotice& notice, const std::vector<int>& output = {}) const {
    CHECK(launcher_socket->try_send(notice.encode(), output).ok(), "try_send");
  }

  std::optional<UnixSocket> launcher_socket;
  Descriptor worker_socket;
};

const LauncherNotice kOutlive{.kind = LauncherNotice::Kind::kOutlive};

TEST(LauncherWatch, CanBeDestroyedAndStartedAgain) {
  const Launcher launcher;
  {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
  }
  const auto second_watch = LauncherWatch::start(launcher.worker_socket.get());
  EXPECT_EQ(second_watch.status(), Status());
}

TEST(LauncherWatch, NeedsTheSocketOfTheLauncher) {
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto watch = LauncherWatch::start(file.get());
  EXPECT_EQ(watch.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(watch.status().message(), HasSubstr("should be this worker's socket"));
}

// Runs `worker` in a child process with its own process group. While the worker runs, calls
// `action` in the role of the launcher. Returns the exit code of the child, or 128 + the signal
// that has killed it.
int exit_code_of_worker(
    Launcher& launcher, const std::function<int()>& worker,
    const std::function<void()>& action = [] {}) {
  const pid_t pid = ::fork();
  CHECK(pid >= 0, "fork");
  if (pid == 0) {
    ::setpgid(0, 0);
    launcher.launcher_socket.reset();
    ::_exit(worker());
  }
  action();
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

[[noreturn]] void hang() {
  for (;;) ::pause();
}

LauncherNotice loss_notice(std::int64_t epoch, int rank) {
  return {.kind = LauncherNotice::Kind::kMemberLost, .epoch = epoch, .rank = rank};
}

TEST(LauncherWatch, ReportsWhichMemberOfTheEpochIsLost) {
  const Launcher launcher;
  const auto watch = LauncherWatch::start(launcher.worker_socket.get());
  std::atomic<int> lost_rank = -1;
  (*watch)->watch_members(2, [&](int rank) { lost_rank = rank; });
  launcher.send_notice(loss_notice(1, 5));
  launcher.send_notice(loss_notice(3, 6));
  launcher.send_notice(loss_notice(2, 4));
  const TimePoint deadline = test_deadline();
  while (lost_rank < 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(lost_rank, 4) << "the other notices are of other epochs";
}

TEST(LauncherWatch, ReportsALossThatWasAnnouncedBefore) {
  const Launcher launcher;
  launcher.send_notice(loss_notice(2, 4));
  const auto watch = LauncherWatch::start(launcher.worker_socket.get());
  int lost_rank = -1;
  const auto handler = [&](int rank) { lost_rank = rank; };
  (*watch)->watch_members(1, handler);
  EXPECT_EQ(lost_rank, -1);
  (*watch)->watch_members(2, handler);
  EXPECT_EQ(lost_rank, 4);
  lost_rank = -1;
  (*watch)->watch_members(0, {});
  EXPECT_EQ(lost_rank, -1);
}

// If the job must end, the watch runs until its process ends. So these tests use child processes.

TEST(LauncherWatch, KnowsWhyTheJobEnds) {
  Launcher launcher;
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    return (*watch)->announced_end(test_deadline()) == "it is late" ? 75 : 1;
  };
  const auto send_notice = [&] {
    launcher.send_notice({.limit = seconds(60), .why = "it is late"});
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker, send_notice), 75);
}

TEST(LauncherWatch, ReadsNoticesThatCameBeforeItStarted) {
  Launcher launcher;
  launcher.send_notice({.limit = seconds(60), .why = "it is late"});
  launcher.send_notice({.limit = milliseconds(0), .why = "only the first notice counts"});
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    return (*watch)->announced_end() == "it is late" ? 75 : 1;
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker), 75);
}

TEST(LauncherWatch, AWorkerThatMustEndKeepsItsTimeLimitIfTheLauncherIsLost) {
  Launcher launcher;
  launcher.send_notice({.limit = seconds(60), .why = "it is late"});
  launcher.launcher_socket.reset();
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    return (*watch)->announced_end(test_deadline()) == "it is late" ? 75 : 1;
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker), 75);
}

TEST(LauncherWatch, AWorkerMayOutliveItsLauncher) {
  Launcher launcher;
  launcher.send_notice(kOutlive);
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    const std::string end_reason = (*watch)->announced_end(test_deadline());
    return end_reason.find("has ended without ending its workers") != std::string::npos ? 75 : 1;
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker, [&] { launcher.launcher_socket.reset(); }), 75);
}

TEST(LauncherWatch, OtherWorkersAreKilledWithTheirLauncher) {
  Launcher launcher;
  const auto worker = [&]() -> int {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    hang();
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker, [&] { launcher.launcher_socket.reset(); }),
            128 + SIGKILL);
}

TEST(LauncherWatch, AWorkerThatHangsIsKilledAtTheLimitWithItsChildren) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const Descriptor read_end(pipe_ends[0]);
  Descriptor write_end(pipe_ends[1]);
  Launcher launcher;
  const auto worker = [&]() -> int {
    if (::fork() == 0) hang();  // keeps the pipe open
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    hang();
  };
  const auto send_notice = [&] {
    launcher.send_notice({.limit = milliseconds(1), .why = "it is late"});
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker, send_notice), 128 + SIGKILL);
  write_end.reset();
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "no child is left";
}

TEST(LauncherWatch, TheLimitOutlivesTheWatch) {
  Launcher launcher;
  launcher.send_notice({.limit = milliseconds(50), .why = "it is late"});
  const auto worker = [&]() -> int {
    {
      const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    }
    hang();
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker), 128 + SIGKILL);
}

// The launcher reads the output of its worker. When the launcher is gone, the watch reads this
// output.
TEST(LauncherWatch, OutputCanBeWrittenWithoutALauncher) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  Descriptor read_end(pipe_ends[0]);
  const Descriptor write_end(pipe_ends[1]);
  ASSERT_EQ(::fcntl(write_end.get(), F_SETFL, 0), 0);  // a worker's writes block on a full pipe
  Launcher launcher;
  launcher.send_notice(kOutlive, {read_end.get()});
  read_end.reset();
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.worker_socket.get());
    const std::string large_text(1 << 20, 'x');
    for (std::size_t written = 0; written < large_text.size();) {
      const auto count =
          ::write(write_end.get(), large_text.data() + written, large_text.size() - written);
      if (count < 0) return 1;
      written += static_cast<std::size_t>(count);
    }
    return 75;
  };
  EXPECT_EQ(exit_code_of_worker(launcher, worker, [&] { launcher.launcher_socket.reset(); }), 75);
}

}  // namespace
}  // namespace farandole
