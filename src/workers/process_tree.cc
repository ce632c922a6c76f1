#include "workers/process_tree.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace farandole {
namespace {

std::optional<pid_t> as_pid(const std::string& name) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return pid;
}

// Reads /proc/<pid>/stat: "pid (name) state parent …". The name may contain brackets.
std::optional<pid_t> parent_from_stat(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  char state = 0;
  pid_t parent = 0;
  if (std::sscanf(line.c_str() + name_end + 1, " %c %d", &state, &parent) != 2) return std::nullopt;
  if (state == 'Z' || state == 'X') return std::nullopt;
  return parent;
}

// Waits until a child has ended, or until the deadline.
void wait_for_child_end(TimePoint deadline) {
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  const auto time_left = std::max<Duration>(deadline - std::chrono::steady_clock::now(), {});
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time_left);
  const timespec limit{
      seconds.count(),
      std::chrono::duration_cast<std::chrono::nanoseconds>(time_left - seconds).count()};
  ::sigtimedwait(&child_signal, nullptr, &limit);
}

}  // namespace

ParentByPid read_process_table() {
  ParentByPid parent_by_pid;
  std::error_code error;
  // increment(error) does not throw if a process ends during this loop.
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const auto pid = as_pid(entry->path().filename());
    if (!pid) continue;
    if (const auto parent = parent_from_stat(entry->path())) parent_by_pid.emplace(*pid, *parent);
  }
  return parent_by_pid;
}

std::vector<pid_t> descendants_of(pid_t root, const ParentByPid& parent_by_pid) {
  std::multimap<pid_t, pid_t> children_by_parent;
  for (const auto& [pid, parent] : parent_by_pid) children_by_parent.emplace(parent, pid);
  std::vector<pid_t> descendants;
  std::vector<pid_t> to_visit{root};
  while (!to_visit.empty()) {
    const pid_t parent = to_visit.back();
    to_visit.pop_back();
    const auto [begin, end] = children_by_parent.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      descendants.push_back(child->second);
      to_visit.push_back(child->second);
    }
  }
  return descendants;
}

void signal_descendants(int signal) {
  for (const pid_t pid : descendants_of(::getpid(), read_process_table())) ::kill(pid, signal);
}

bool has_descendants() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void reap_children() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

bool end_descendants(TimePoint deadline) {
  // A process that is forked during one round is found in a later round. It becomes our child when
  // its parent dies, and every death of a child starts a new round.
  for (;;) {
    reap_children();
    if (!has_descendants()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    signal_descendants(SIGKILL);
    reap_children();
    if (!has_descendants()) return true;
    wait_for_child_end(deadline);
  }
}

}  // namespace farandole
