#include "driver/host_discovery.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"
#include "base/process_end.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "remote/pipe.h"
#include "workers/worker_environment.h"

namespace farandole {

HostDiscovery::HostDiscovery(DiscoveryPlan plan, Poller& poller, std::uint64_t tag,
                             const OriginalProcessState& state)
    : plan_(std::move(plan)),
      name_("--host-discovery-script: \"" + escape_controls(plan_.program) + "\""),
      poller_(poller),
      tag_(tag),
      original_state_(state) {}

HostDiscovery::~HostDiscovery() {
  if (process_.pid > 0) end_run();
}

Status HostDiscovery::start(TimePoint now) {
  next_run_ = now + kRunPause;
  FARANDOLE_TRY_ASSIGN(Pipe pipe, make_pipe());
  ::fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  const std::vector<std::string> command{"/bin/sh", "-c", plan_.program};
  FARANDOLE_TRY_ASSIGN(process_,
                       start_process({.command = command,
                                      .environment = merge_environment({inherited_environment()}),
                                      .inherited = {},
                                      .standard_output = pipe.write_end.get(),
                                      .standard_error = STDERR_FILENO,
                                      .original_state = original_state_}));
  output_ = std::move(pipe.read_end);
  output_text_.clear();
  run_deadline_ = now + kRunTimeMax;
  if (poller_.add(process_.pidfd.get(), Poller::Interest::kReading, tag_) &&
      poller_.add(output_.get(), Poller::Interest::kReading, tag_))
    return {};
  end_run();
  return Status::stop("it cannot be watched; the limit is in /proc/sys/fs/epoll/max_user_watches");
}

void HostDiscovery::read_output() {
  std::array<char, 1 << 14> buffer;
  for (;;) {
    const ssize_t count = ::read(output_.get(), buffer.data(), buffer.size());
    if (count <= 0) {
      if (count == 0) poller_.remove(output_.get());
      return;
    }
    if (output_text_.size() < kOutputBytesMax)
      output_text_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

// Ends the run, and the processes that it has started.
void HostDiscovery::end_run() {
  poller_.remove(process_.pidfd.get());
  poller_.remove(output_.get());
  ::kill(-process_.pid, SIGKILL);
  const auto process_end = reap(process_.pid);
  exit_code_ = process_end ? std::optional(process_end->exit_code()) : std::nullopt;
  if (!process_end) ::waitpid(process_.pid, nullptr, 0);  // the program got SIGKILL, so it ends
  process_ = {};
  output_.reset();
}

HostDiscovery::Update HostDiscovery::advance(TimePoint now) {
  Update update;
  Status status;
  if (process_.pid == 0) {
    if (now < next_run_) return update;
    const Status started = start(now);
    if (started.ok()) return update;
    status = Status::stop(format_text("{}: {}", name_, started.message()));
  } else {
    read_output();
    has_timed_out_ = !has_ended(process_.pidfd);
    if (has_timed_out_ && now < run_deadline_) return update;
    read_output();
    end_run();
    next_run_ = now + kRunPause;
    auto hosts = parse_output();
    status = hosts.status();
    if (hosts.ok()) update.hosts = *std::move(hosts);
  }
  if (status.message() != std::exchange(last_error_, status.message()))
    update.error = status.message();
  return update;
}

Result<std::vector<HostEntry>> HostDiscovery::parse_output() const {
  if (has_timed_out_)
    return Status::stop(
        format_text("{} has not ended within {} s; it was killed", name_, kRunTimeMax.count()));
  if (exit_code_ != 0)
    return Status::stop(
        format_text("{} has failed with exit code {}", name_, exit_code_.value_or(-1)));
  if (output_text_.size() >= kOutputBytesMax)
    return Status::stop(format_text("{} writes more than {} bytes", name_, kOutputBytesMax));
  FARANDOLE_TRY_ASSIGN(auto hosts,
                       parse_hostfile(output_text_, "the output of " + name_, plan_.slots_default));
  for (HostEntry& host : hosts) host.slots = std::min(host.slots, plan_.slots_max);
  return hosts;
}

}  // namespace farandole
