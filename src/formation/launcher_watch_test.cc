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

TimePoint soon() { return std::chrono::steady_clock::now() + seconds(60); }

// A launcher and its socket to a worker.
struct Launcher {
  Launcher() {
    auto ends = UnixSocket::make_pair();
    CHECK(ends.ok(), "socketpair");
    ours.emplace(std::move(ends->first));
    theirs = ends->second.take_descriptor();
  }
  void tell(const LauncherNotice& notice, const std::vector<int>& output = {}) const {
    CHECK(ours->try_send(notice.encode(), output).ok(), "try_send");
  }

  std::optional<UnixSocket> ours;
  Descriptor theirs;
};

const LauncherNotice kOutlive{.kind = LauncherNotice::Kind::kOutlive};

TEST(LauncherWatch, EndsWithoutAnAnnouncement) {
  const Launcher launcher;
  {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
  }
  const auto again = LauncherWatch::start(launcher.theirs.get());
  EXPECT_EQ(again.status(), Status());
}

TEST(LauncherWatch, NeedsTheSocketOfTheLauncher) {
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto watch = LauncherWatch::start(file.get());
  EXPECT_EQ(watch.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(watch.status().message(), HasSubstr("should be this worker's socket"));
}

// Runs `worker` in a child process with a process group of its own. Returns its exit code, or 128 +
// the signal that has killed it. Meanwhile, the launcher does what `act` says.
int end_of_worker(
    Launcher& launcher, const std::function<int()>& worker,
    const std::function<void()>& act = [] {}) {
  const pid_t pid = ::fork();
  CHECK(pid >= 0, "fork");
  if (pid == 0) {
    ::setpgid(0, 0);
    launcher.ours.reset();
    ::_exit(worker());
  }
  act();
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

[[noreturn]] void hang() {
  for (;;) ::pause();
}

LauncherNotice loss_in(std::int64_t epoch, int rank) {
  return {.kind = LauncherNotice::Kind::kMemberLost, .epoch = epoch, .rank = rank};
}

TEST(LauncherWatch, TellsWhichMemberOfTheEpochIsLost) {
  const Launcher launcher;
  const auto watch = LauncherWatch::start(launcher.theirs.get());
  std::atomic<int> lost = -1;
  (*watch)->watch_members(2, [&](int rank) { lost = rank; });
  launcher.tell(loss_in(1, 5));
  launcher.tell(loss_in(3, 6));
  launcher.tell(loss_in(2, 4));
  const TimePoint hang_guard = soon();
  while (lost < 0 && std::chrono::steady_clock::now() < hang_guard) std::this_thread::yield();
  EXPECT_EQ(lost, 4) << "the others are of other epochs";
}

TEST(LauncherWatch, TellsALossThatWasSaidBefore) {
  const Launcher launcher;
  launcher.tell(loss_in(2, 4));
  const auto watch = LauncherWatch::start(launcher.theirs.get());
  int lost = -1;
  const auto handler = [&](int rank) { lost = rank; };
  (*watch)->watch_members(1, handler);
  EXPECT_EQ(lost, -1);
  (*watch)->watch_members(2, handler);
  EXPECT_EQ(lost, 4);
  lost = -1;
  (*watch)->watch_members(0, {});
  EXPECT_EQ(lost, -1);
}

// If the job must end, the watch goes on to the end of the process, so these are processes.

TEST(LauncherWatch, KnowsWhyTheJobEnds) {
  Launcher launcher;
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    return (*watch)->announced_end(soon()) == "it is late" ? 75 : 1;
  };
  const auto tell = [&] { launcher.tell({.limit = seconds(60), .why = "it is late"}); };
  EXPECT_EQ(end_of_worker(launcher, worker, tell), 75);
}

TEST(LauncherWatch, KnowsWhatWasSaidBeforeItStarted) {
  Launcher launcher;
  launcher.tell({.limit = seconds(60), .why = "it is late"});
  launcher.tell({.limit = milliseconds(0), .why = "only the first notice counts"});
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    return (*watch)->announced_end() == "it is late" ? 75 : 1;
  };
  EXPECT_EQ(end_of_worker(launcher, worker), 75);
}

TEST(LauncherWatch, AWorkerThatWasToldToEndHasItsTimeWithoutALauncherToo) {
  Launcher launcher;
  launcher.tell({.limit = seconds(60), .why = "it is late"});
  launcher.ours.reset();
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    return (*watch)->announced_end(soon()) == "it is late" ? 75 : 1;
  };
  EXPECT_EQ(end_of_worker(launcher, worker), 75);
}

TEST(LauncherWatch, AWorkerMayOutliveItsLauncher) {
  Launcher launcher;
  launcher.tell(kOutlive);
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    const std::string why = (*watch)->announced_end(soon());
    return why.find("has ended without ending its workers") != std::string::npos ? 75 : 1;
  };
  EXPECT_EQ(end_of_worker(launcher, worker, [&] { launcher.ours.reset(); }), 75);
}

TEST(LauncherWatch, OtherWorkersAreKilledWithTheirLauncher) {
  Launcher launcher;
  const auto worker = [&]() -> int {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    hang();
  };
  EXPECT_EQ(end_of_worker(launcher, worker, [&] { launcher.ours.reset(); }), 128 + SIGKILL);
}

TEST(LauncherWatch, AWorkerThatHangsIsKilledAtTheLimitWithItsChildren) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  Launcher launcher;
  const auto worker = [&]() -> int {
    if (::fork() == 0) hang();  // keeps the pipe open
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    hang();
  };
  const auto tell = [&] { launcher.tell({.limit = milliseconds(1), .why = "it is late"}); };
  EXPECT_EQ(end_of_worker(launcher, worker, tell), 128 + SIGKILL);
  writing.reset();
  char byte = 0;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0) << "no child is left";
}

TEST(LauncherWatch, TheLimitOutlivesTheWatch) {
  Launcher launcher;
  launcher.tell({.limit = milliseconds(50), .why = "it is late"});
  const auto worker = [&]() -> int {
    {
      const auto watch = LauncherWatch::start(launcher.theirs.get());
    }
    hang();
  };
  EXPECT_EQ(end_of_worker(launcher, worker), 128 + SIGKILL);
}

// The launcher has read the output. When it is gone, the watch does.
TEST(LauncherWatch, OutputCanBeWrittenWithoutALauncher) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  ASSERT_EQ(::fcntl(writing.get(), F_SETFL, 0), 0);  // its writes block
  Launcher launcher;
  launcher.tell(kOutlive, {reading.get()});
  reading.reset();
  const auto worker = [&] {
    const auto watch = LauncherWatch::start(launcher.theirs.get());
    const std::string much(1 << 20, 'x');
    for (std::size_t written = 0; written < much.size();) {
      const auto count = ::write(writing.get(), much.data() + written, much.size() - written);
      if (count < 0) return 1;
      written += static_cast<std::size_t>(count);
    }
    return 75;
  };
  EXPECT_EQ(end_of_worker(launcher, worker, [&] { launcher.ours.reset(); }), 75);
}

}  // namespace
}  // namespace farandole
