// For tests of the agent and the foreground process. The test runs one of them in a child process
// and reads its output through a pipe. The workers are shell scripts.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "launcher/job_options.h"

namespace farandole {

// A script that runs `before`, prints that it is ready, and waits for a signal. It starts no
// process while it waits, because a shell that is stopped between fork and exec would not be
// reported as stopped.
inline std::string waiting_script(const std::string& before) {
  return before + "; sleep 1000 & echo worker $$ of $PPID is ready; wait";
}

inline JobOptions shell_job(int workers, const std::string& script) {
  JobOptions options;
  options.workers = workers;
  options.command = {"sh", "-c", script};
  options.variables = {
      {"OMP_NUM_THREADS", "1"}};  // so that the launcher prints no line about threads
  return options;
}

inline bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

class LauncherInTest {
 public:
  // The child calls `run`, which returns its exit code.
  explicit LauncherInTest(const std::function<int()>& run) {
    // If the launcher is killed, its children must become ours, so that we can reap them.
    CHECK(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl");
    std::array<int, 2> ends{};
    CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
    output_end_ = Descriptor(ends[0]);
    const Descriptor launcher_end(ends[1]);
    pid_ = ::fork();
    CHECK(pid_ >= 0, "fork");
    if (pid_ != 0) return;
    output_end_.reset();
    ::dup2(launcher_end.get(), STDOUT_FILENO);
    ::dup2(launcher_end.get(), STDERR_FILENO);
    ::_exit(run());
  }
  ~LauncherInTest() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  LauncherInTest(const LauncherInTest&) = delete;
  LauncherInTest& operator=(const LauncherInTest&) = delete;

  pid_t pid() const { return pid_; }
  void send_signal(int signal) const { ::kill(pid_, signal); }

  void read_until(const std::string& text) {
    while (output_.find(text) == std::string::npos)
      ASSERT_TRUE(read_more()) << "no `" << text << "` in: " << output_;
  }
  // Reads the output until all of the launcher's processes have ended (workers do not hold the
  // pipe). Returns the exit code, or 128 + the signal that killed the child.
  int wait_for_end() {
    while (read_more()) {
    }
    int status = 0;
    EXPECT_EQ(::waitpid(std::exchange(pid_, 0), &status, 0) > 0, true);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  const std::string& output() const { return output_; }
  // Returns the number that follows `text` in the output.
  pid_t number_after(const std::string& text) const {
    const auto at = output_.find(text);
    EXPECT_NE(at, std::string::npos) << "no `" << text << "` in: " << output_;
    return at == std::string::npos ? 0 : std::atoi(output_.c_str() + at + text.size());
  }

 private:
  // Reads more output. Returns false at the end of the output, or if no output arrives for
  // kTestTimeoutMs.
  bool read_more() {
    constexpr int kTestTimeoutMs = 60'000;
    pollfd entry{output_end_.get(), POLLIN, 0};
    if (::poll(&entry, 1, kTestTimeoutMs) <= 0) {
      ADD_FAILURE() << "the launcher hangs; so far: " << output_;
      return false;
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(output_end_.get(), bytes.data(), bytes.size());
    if (count > 0) output_.append(bytes.data(), static_cast<std::size_t>(count));
    return count > 0;
  }

  Descriptor output_end_;
  pid_t pid_ = -1;
  std::string output_;
};

}  // namespace farandole
