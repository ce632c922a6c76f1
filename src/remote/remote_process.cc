#include "remote/remote_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "remote/own_host.h"
#include "remote/passed_environment.h"
#include "remote/pipe.h"
#include "workers/worker_environment.h"

namespace farandole {
namespace {

Status watch_error() {
  return Status::stop("it cannot be watched; the limit is in /proc/sys/fs/epoll/max_user_watches");
}

}  // namespace

bool write_greeting(std::string_view greeting) {
  // Begin with an empty line, because a start-up file of the shell may have written a line without
  // its end.
  const std::string line = format_text("\n{}\n", greeting);
  for (const int stream : {STDERR_FILENO, STDOUT_FILENO})
    if (::write(stream, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      return false;
  return true;
}

RemoteProcess::RemoteProcess(HostEntry host, Poller& poller, Tags tags)
    : host_(std::move(host)),
      poller_(poller),
      tags_(tags),
      is_own_host_(farandole::is_own_host(host_)) {}

RemoteProcess::~RemoteProcess() {
  if (!is_running()) return;
  signal(SIGKILL);
  ::waitpid(process_.pid, nullptr, 0);
}

Status RemoteProcess::start(const Program& program, int standard_output, int standard_error,
                            const OriginalProcessState& state) {
  greeting_ = program.greeting;
  command_ = is_own_host_ ? program.words : ssh_command(host_, program.ssh, program.words);
  FARANDOLE_TRY_ASSIGN(Pipe pipe, make_pipe());
  (void)replace_input(std::move(pipe.write_end));
  FARANDOLE_TRY_ASSIGN(process_,
                       start_process({.command = command_,
                                      .environment = merge_environment({inherited_environment()}),
                                      .inherited = {},
                                      .standard_input = pipe.read_end.get(),
                                      .standard_output = standard_output,
                                      .standard_error = standard_error,
                                      .original_state = state}));
  end_is_watched_ = poller_.add(process_.pidfd.get(), Poller::Interest::kReading, tags_.end);
  if (end_is_watched_) return {};
  signal(SIGKILL);
  ::waitpid(std::exchange(process_.pid, 0), nullptr, 0);
  return watch_error();
}

bool RemoteProcess::has_ended() {
  if (!is_running() || !farandole::has_ended(process_.pidfd)) return false;
  if (std::exchange(end_is_watched_, false)) poller_.remove(process_.pidfd.get());
  return true;
}

bool RemoteProcess::reap() {
  const auto end = is_running() ? farandole::reap(process_.pid) : std::nullopt;
  if (!end) return false;
  end_ = end;
  process_ = {};
  close_input();
  return true;
}

void RemoteProcess::signal(int number) const {
  if (is_running()) ::kill(-process_.pid, number);
}

Status RemoteProcess::send_secret(const JobSecret& secret) const {
  if (!input_.valid()) return {};
  const Status sent = secret.write_to(input_.get());
  pollfd entry{input_.get(), POLLOUT, 0};
  const bool has_no_reader = ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0;
  return has_no_reader ? Status() : sent;
}

Status RemoteProcess::send(std::string_view bytes) {
  if (!input_.valid()) return {};
  unsent_ += bytes;
  input_writable();
  return unsent_.empty() || input_is_watched_ ? Status() : watch_error();
}

void RemoteProcess::input_writable() {
  const ssize_t count = ::write(input_.get(), unsent_.data(), unsent_.size());
  if (count > 0) unsent_.erase(0, static_cast<std::size_t>(count));
  // An error means that the process has ended, so no process would read the unsent bytes.
  if (count < 0 && errno != EAGAIN && errno != EINTR) unsent_.clear();
  const bool is_wanted = !unsent_.empty();
  if (is_wanted == input_is_watched_) return;
  if (!is_wanted) poller_.remove(input_.get());
  input_is_watched_ =
      is_wanted && poller_.add(input_.get(), Poller::Interest::kWriting, tags_.input);
}

void RemoteProcess::close_input() { (void)replace_input(Descriptor()); }

RemoteProcess::Input RemoteProcess::replace_input(Descriptor input) {
  if (std::exchange(input_is_watched_, false)) poller_.remove(input_.get());
  if (input.valid()) ::fcntl(input.get(), F_SETFL, O_NONBLOCK);
  return {std::exchange(input_, std::move(input)), std::exchange(unsent_, "")};
}

std::vector<std::string> RemoteProcess::variables() const {
  if (is_own_host_) return {};  // the process has inherited these variables
  return passed_environment(merge_environment({inherited_environment()}));
}

RemoteProcess::LineKind RemoteProcess::receive_line(std::size_t stream, const std::string& line) {
  if (has_greeted_.at(stream)) return LineKind::kOfProgram;
  if (!line.starts_with(greeting_)) {
    keep_line(line);
    return LineKind::kBeforeGreeting;
  }
  has_greeted_.at(stream) = true;
  if (stream == 0) version_ = line.substr(greeting_.size());
  return LineKind::kGreeting;
}

void RemoteProcess::keep_line(const std::string& line) {
  if (!line.empty() && kept_lines_.size() < kKeptLinesMax)
    kept_lines_.push_back(escape_controls(line));
}

std::string RemoteProcess::why_ended() const {
  if (!kept_lines_.empty() || !end_) return join_text(kept_lines_, "; ");
  return format_text("`{}` {} {} without a message", command_.front(),
                     end_->signal != 0 ? "was" : "has", describe(*end_));
}

std::string RemoteProcess::why_silent(std::string_view reason) const {
  const std::string lines = join_text(kept_lines_, "; ");
  return lines.empty() ? std::string(reason) : format_text("{}; {}", lines, reason);
}

std::string RemoteProcess::advice() const {
  if (!end_) return hint_for_failed_start(command_, kSshError, {});
  return hint_for_failed_start(command_, end_->code, kept_lines_);
}

}  // namespace farandole
