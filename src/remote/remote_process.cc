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
  // A start-up file of the shell may have written a line without its end.
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
  ::waitpid(started_.pid, nullptr, 0);
}

Status RemoteProcess::start(const Program& program, int standard_output, int standard_error,
                            const OriginalProcessState& state) {
  greeting_ = program.greeting;
  command_ = is_own_host_ ? program.words : ssh_command(host_, program.ssh, program.words);
  FARANDOLE_TRY_ASSIGN(Pipe pipe, make_pipe());
  (void)replace_input(std::move(pipe.writing));
  FARANDOLE_TRY_ASSIGN(started_,
                       start_process({.command = command_,
                                      .environment = merge_environment({inherited_environment()}),
                                      .inherited = {},
                                      .standard_input = pipe.reading.get(),
                                      .standard_output = standard_output,
                                      .standard_error = standard_error,
                                      .state = state}));
  end_is_watched_ = poller_.add(started_.pidfd.get(), Poller::Interest::kReading, tags_.end);
  if (end_is_watched_) return {};
  signal(SIGKILL);
  ::waitpid(std::exchange(started_.pid, 0), nullptr, 0);
  return watch_error();
}

bool RemoteProcess::has_ended() {
  if (!is_running() || !farandole::has_ended(started_.pidfd)) return false;
  if (std::exchange(end_is_watched_, false)) poller_.remove(started_.pidfd.get());
  return true;
}

bool RemoteProcess::reap() {
  const auto end = is_running() ? farandole::reap(started_.pid) : std::nullopt;
  if (!end) return false;
  end_ = end;
  started_ = {};
  close_input();
  return true;
}

void RemoteProcess::signal(int number) const {
  if (is_running()) ::kill(-started_.pid, number);
}

Status RemoteProcess::send_secret(const JobSecret& secret) const {
  if (!input_.valid()) return {};
  const Status sent = secret.write_to(input_.get());
  pollfd entry{input_.get(), POLLOUT, 0};
  const bool nobody_reads = ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) != 0;
  return nobody_reads ? Status() : sent;
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
  // If the process has ended, the other bytes have no reader.
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
  if (is_own_host_) return {};  // the process has inherited them
  return passed_environment(merge_environment({inherited_environment()}));
}

RemoteProcess::Line RemoteProcess::take_line(std::size_t stream, const std::string& line) {
  if (has_greeted_.at(stream)) return Line::kOfProgram;
  if (!line.starts_with(greeting_)) {
    keep_line(line);
    return Line::kBeforeGreeting;
  }
  has_greeted_.at(stream) = true;
  if (stream == 0) version_ = line.substr(greeting_.size());
  return Line::kGreeting;
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
