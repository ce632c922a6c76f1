#include "doctor/doctor_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/process_end.h"

namespace farandole {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kTimeLimit = std::chrono::seconds(10);
// A check that has written more than this, and has not ended in time, may write without end.
constexpr std::size_t kLateBytesMax = 1U << 20U;
constexpr int kKillTimeMaxMs = 1000;

// A finding is encoded as a digit and three texts, each with a zero byte at its end.
std::string encode(const std::vector<Finding>& findings) {
  std::string bytes;
  for (const Finding& finding : findings) {
    bytes += static_cast<char>('0' + static_cast<int>(finding.health));
    bytes.append(finding.found).push_back('\0');
    bytes.append(finding.advice).push_back('\0');
    bytes.append(finding.version).push_back('\0');
  }
  return bytes;
}

// Returns the text up to the next zero byte, and removes the text and this byte. Empty if there is
// no such byte.
std::optional<std::string> next_text(std::string_view& bytes) {
  const auto end = bytes.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  std::string text(bytes.substr(0, end));
  bytes.remove_prefix(end + 1);
  return text;
}

// Returns the findings that are complete.
std::vector<Finding> decode(std::string_view bytes) {
  std::vector<Finding> findings;
  while (!bytes.empty()) {
    const auto health = static_cast<Health>(bytes.front() - '0');
    bytes.remove_prefix(1);
    auto found = next_text(bytes);
    auto advice = next_text(bytes);
    auto version = next_text(bytes);
    if (!version) break;
    findings.push_back({health, *std::move(found), *std::move(advice), *std::move(version)});
  }
  return findings;
}

// Runs in the child. The standard streams of the child lead to /dev/null, so that the check does
// not disturb our output or our terminal.
[[noreturn]] void run_and_report(const Check& check, const Descriptor& reporter) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::signal(SIGXFSZ, SIG_IGN);  // as in a job, a call beyond `ulimit -f` then only fails
  const int null_device = ::open("/dev/null", O_RDWR);
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null_device, number);
  const std::string bytes = encode(check.run());
  std::size_t bytes_written = 0;
  while (bytes_written < bytes.size()) {
    const ssize_t count =
        ::write(reporter.get(), bytes.data() + bytes_written, bytes.size() - bytes_written);
    if (count < 0) ::_exit(1);
    bytes_written += static_cast<std::size_t>(count);
  }
  ::_exit(0);
}

// Reads until the other end is closed. Returns nothing if the other end stays open for longer than
// kTimeLimit.
std::optional<std::string> read_all(const Descriptor& source) {
  const auto deadline = SteadyClock::now() + kTimeLimit;
  std::string bytes;
  for (;;) {
    const auto time_left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    pollfd entry{source.get(), POLLIN, 0};
    // Look even if the time is over, because this process itself may have been late.
    const auto poll_ms = std::max<std::int64_t>(time_left.count(), 0);
    const bool has_bytes = ::poll(&entry, 1, static_cast<int>(poll_ms)) > 0;
    const bool is_late = time_left.count() <= 0;
    if (is_late && (!has_bytes || bytes.size() > kLateBytesMax)) return std::nullopt;
    if (!has_bytes) continue;
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(source.get(), buffer.data(), buffer.size());
    if (count <= 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

// Kills the check's process group. Waits at most kKillTimeMaxMs for its end, because a process that
// hangs in the kernel may end much later.
void kill_group(pid_t leader) {
  ::kill(-leader, SIGKILL);
  ::kill(leader, SIGKILL);  // the check may not have created its group yet
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, leader, 0)));
  pollfd entry{process.get(), POLLIN, 0};
  if (process.valid()) ::poll(&entry, 1, kKillTimeMaxMs);
  ::waitpid(leader, nullptr, WNOHANG);
}

std::vector<Finding> same_finding_for_all(const Check& check, const std::string& found,
                                          const std::string& advice) {
  return std::vector<Finding>(check.names.size(), Finding{Health::kDoesNotWork, found, advice});
}

std::vector<Finding> findings_if_untried(const Check& check, const char* call) {
  return same_finding_for_all(check,
                              format_text("cannot be tried: {}: {}", call, ::strerror(errno)),
                              "look at `ulimit -u` and `ulimit -n`");
}

}  // namespace

Check single_check(std::string name, bool essential, Finding (*run)()) {
  return {{std::move(name)}, essential, [run] { return std::vector<Finding>{run()}; }};
}

std::vector<Finding> findings_of(const Check& check) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return findings_if_untried(check, "pipe2");
  const Descriptor ours(ends[0]);
  Descriptor theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return findings_if_untried(check, "fork");
  if (child == 0) run_and_report(check, theirs);
  theirs.reset();
  const auto bytes = read_all(ours);
  if (!bytes) {
    kill_group(child);
    return same_finding_for_all(check, format_text("no answer within {} s", kTimeLimit.count()),
                                "");
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::kill(-child, SIGKILL);  // processes that the check may have left behind
  auto findings = decode(*bytes);
  if (findings.size() == check.names.size()) return findings;
  if (!WIFSIGNALED(status))
    return same_finding_for_all(check, "the check ended without an answer", "");
  return same_finding_for_all(check, "the check crashed: " + signal_name(WTERMSIG(status)), "");
}

}  // namespace farandole
