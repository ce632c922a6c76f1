#include "driver/driver.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/format.h"
#include "base/poller.h"
#include "base/process_end.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "driver/first_hosts.h"
#include "driver/host_process.h"
#include "driver/host_relays.h"
#include "driver/host_roster.h"
#include "launcher/driver_lines.h"
#include "launcher/signal_setup.h"
#include "network/tcp/job_secret.h"
#include "network/tcp/socket_address.h"
#include "output/colors.h"
#include "output/job_output.h"
#include "output/line_splitter.h"
#include "output/rank_files.h"
#include "output/worker_stream.h"
#include "remote/own_host.h"
#include "remote/remote_process.h"
#include "supervision/signal_repeats.h"
#include "workers/worker_process.h"

namespace farandole {
namespace {

// The launchers cut the lines of workers to kLineBytesMax, and then add prefixes.
constexpr std::size_t kLineWithPrefixBytesMax = 4 * kLineBytesMax;
// After the first failed start, the driver waits this long for errors of the other hosts.
constexpr auto kOtherErrorsTimeout = std::chrono::seconds(5);
// After this time, the driver kills the processes that it has told to end.
constexpr auto kEndTimeout = std::chrono::seconds(20);
constexpr auto kSecondEndTimeout = std::chrono::seconds(5);  // after a second signal
// After the connection to a host is lost, the job must end within this time.
constexpr auto kLostConnectionTimeout = std::chrono::seconds(45);
constexpr auto kRestartPauseMin = std::chrono::seconds(1);  // the shortest pause before a retry
// The driver replaces a lost launcher of node 0. But the job ends after more than kQuickLossesMax
// losses in a row, each within kQuickLossTime after the start of the launcher.
constexpr int kQuickLossesMax = 3;
constexpr auto kQuickLossTime = std::chrono::seconds(60);
// How often we try to reap a process that a debugger traces.
constexpr auto kReapRetryInterval = std::chrono::milliseconds(200);
// After a host has left an elastic job, its launcher must end within this time.
constexpr auto kLeaveTimeout = std::chrono::seconds(5);

enum class Source : std::uint64_t {
  kSignals,
  kCaller,
  kReport,
  kWritable,
  kProcess,
  kInput,
  kStream,
  kRelay,
  kDiscovery
};
constexpr std::uint64_t make_tag(Source source, std::uint64_t index = 0) {
  return static_cast<std::uint64_t>(source) << 32U | index;
}

RemoteProcess::Tags tags_of(std::size_t index) {
  return {make_tag(Source::kProcess, index), make_tag(Source::kInput, index)};
}

TimePoint now() { return std::chrono::steady_clock::now(); }

class Driver {
 public:
  Driver(const DriverPlan& plan, Poller poller, JobSecret secret, std::optional<RankFiles> files,
         const OriginalProcessState& state, const Descriptor& signals)
      : plan_(plan),
        poller_(std::move(poller)),
        secret_(std::move(secret)),
        original_state_(state),
        signals_(signals),
        output_options_{.prefix = *LinePrefix::parse(""),
                        .shown_ranks = {},
                        .folder = {},
                        .line_bytes_max = kLineWithPrefixBytesMax,
                        .uses_terminals = false},
        output_(poller_, {make_tag(Source::kStream), make_tag(Source::kWritable)}, output_options_),
        relays_(plan.caller, std::move(files), poller_, make_tag(Source::kReport), output_) {
    int first_rank = 0;
    for (const HostEntry& host : plan.hosts) {
      processes_.emplace_back(host, poller_, tags_of(processes_.size()), first_rank);
      first_rank += host.slots;
    }
    if (!plan.discovery) return;
    roster_.emplace(plan.hosts);
    discovery_.emplace(*plan.discovery, poller_, make_tag(Source::kDiscovery), state);
  }

  int run();

 private:
  void start_next_hosts();
  Status start_host(std::size_t index);
  bool handle_line(std::size_t index, std::size_t stream, const std::string& line);
  void handle_greeting(std::size_t index);
  void set_addresses(const std::string& line);
  void handle_job_begin();
  void give_orders();
  Status give_order(std::size_t index);
  void handle_event(std::uint64_t tag);
  void handle_signals();
  void handle_signal(int signal);
  void pass_on_signal(int signal);
  void handle_process_end(std::size_t index);
  void fail_host(std::size_t index, const std::string& why, int exit_code = 1);
  bool all_needed_hosts_take_part() const;
  bool may_have_more_hosts() const;
  bool may_restart(std::size_t index) const;
  void schedule_restart(std::size_t index);
  void restart_due_hosts();
  bool handle_line_about_node(const std::string& line);
  void handle_lost_node(std::size_t index);
  void handle_first_node_end();
  bool replace_lost_first_node();
  Replacement replacement() const;
  void update_hosts();
  void add_host(const HostRoster::Changes::Addition& addition);
  void replace_process(std::size_t index, const HostEntry& host, int failure_count);
  void fail_hosts_that_ended_early();
  void begin_to_end(Duration time);
  void handle_deadline();
  std::ptrdiff_t count_connecting_hosts() const;
  void give_up_silent_hosts();
  std::optional<TimePoint> next_deadline() const;
  bool all_ended() const;
  int exit_code() const;

  const DriverPlan& plan_;
  Poller poller_;
  JobSecret secret_;
  const OriginalProcessState& original_state_;
  const Descriptor& signals_;
  OutputOptions output_options_;
  JobOutput output_;
  HostRelays relays_;
  std::deque<HostProcess> processes_;
  std::size_t next_host_ = 0;           // the first host that was not started yet
  std::vector<std::string> addresses_;  // where node 0's launcher listens
  bool job_has_begun_ = false;          // all launchers have joined node 0
  std::size_t node_numbers_used_ = 0;   // how many node numbers were ever in use
  std::uint32_t lost_launchers_ = 0;    // how many launchers of node 0 were lost
  std::uint32_t epoch_ = 0;             // the epoch of the last group of an elastic job
  int start_exit_code_ = 0;             // not 0 if a host could not be started
  int end_signal_ = 0;                  // the first signal that asked the job to end; 0: none
  SignalRepeats repeats_;
  // A second signal has arrived, so do not wait for a reader of our output.
  bool skips_waits_ = false;
  bool inputs_closed_ = false;
  std::optional<TimePoint> deadline_;
  std::optional<HostRoster> roster_;  // roster_ and discovery_ are empty if the hosts are fixed
  std::optional<HostDiscovery> discovery_;
};

int Driver::run() {
  const int caller = plan_.caller.pidfd;
  if (!poller_.add(signals_.get(), Poller::Interest::kReading, make_tag(Source::kSignals)) ||
      (caller >= 0 &&
       !poller_.add(caller, Poller::Interest::kReading, make_tag(Source::kCaller)))) {
    output_.show_error("the driver cannot watch its own descriptors");
    return 1;
  }
  output_.set_line_consumer([this](int index, std::size_t stream, const std::string& line) {
    return handle_line(static_cast<std::size_t>(index), stream, line);
  });
  output_.begin(0, {});  // the launchers on the hosts add the prefixes
  while (start_next_hosts(), !all_ended()) {
    for (const std::uint64_t tag : poller_.wait(next_deadline())) handle_event(tag);
    if (output_.is_closed()) handle_signal(SIGPIPE);
    handle_deadline();
  }
  output_.read_remaining();
  output_.close();
  const auto all_written = [this] {
    return output_.everything_is_written() && relays_.report_is_written();
  };
  while (!all_written() && !skips_waits_)
    for (const std::uint64_t tag : poller_.wait(std::nullopt)) handle_event(tag);
  if (const auto lost_output = output_.lost_output()) {
    std::fprintf(stderr, "farandole: %s\n", lost_output->c_str());
    return exit_code() == 0 ? 1 : exit_code();
  }
  return exit_code();
}

void Driver::start_next_hosts() {
  while (next_host_ < processes_.size() && !deadline_ &&
         count_connecting_hosts() < kSshConnectionsMax) {
    const std::size_t index = next_host_++;
    if (const Status started = start_host(index); !started.ok())
      fail_host(index, started.message());
  }
  if (deadline_) next_host_ = processes_.size();
}

Status Driver::start_host(std::size_t index) {
  HostProcess& process = processes_[index];
  const RemoteProcess::Program agent{
      .words = {plan_.program, "agent"}, .greeting = std::string(kAgentGreeting), .ssh = plan_.ssh};
  FARANDOLE_TRY_ASSIGN(const JobOutput::WorkerEnds ends,
                       output_.add_worker(static_cast<int>(index)));
  FARANDOLE_TRY(process.remote.start(agent, ends.standard_output.get(), ends.standard_error.get(),
                                     original_state_));
  process.state = HostProcess::State::kConnecting;
  process.output = ends.ours.front();
  process.answer_deadline = now() + plan_.start_timeout;
  return {};
}

bool Driver::handle_line(std::size_t index, std::size_t stream, const std::string& line) {
  // After a failed start, we end the other launchers. Their messages about this end are not shown.
  if (inputs_closed_ && start_exit_code_ != 0) return true;
  HostProcess& process = processes_[index];
  if (process.has_failed) return true;
  switch (process.remote.receive_line(stream, line)) {
    case RemoteProcess::LineKind::kBeforeGreeting:
      if (process.remote.has_greeted() && !line.empty())
        output_.show_notice(process.name() + ": " + escape_controls(line));
      return true;
    case RemoteProcess::LineKind::kGreeting:
      if (stream == 0) handle_greeting(index);
      return true;
    case RemoteProcess::LineKind::kOfProgram:
      break;
  }
  if (stream == 0 && line == kExitCode255Line) {
    process.has_exit_code_255 = true;
    return true;
  }
  if (index != 0 || stream != 0) return false;
  if (line == kJobIsOverLine) {
    process.job_is_over = true;
    return true;
  }
  if (plan_.elastic && handle_line_about_node(line)) return true;
  if (process.takes_part) return false;
  if (line.starts_with(kListensLine)) {
    if (addresses_.empty()) set_addresses(line);
    return true;
  }
  if (line != kBeginsLine) return false;
  handle_job_begin();
  return true;
}

// Node 0's launcher has said that the job has begun.
void Driver::handle_job_begin() {
  processes_.front().takes_part = true;
  if (job_has_begun_) return;  // this launcher replaces a lost one
  job_has_begun_ = true;
  for (HostProcess& process : processes_) process.takes_part = true;
  node_numbers_used_ = processes_.size();
  if (start_exit_code_ == 0 && !inputs_closed_) deadline_.reset();
}

void Driver::handle_greeting(std::size_t index) {
  HostProcess& process = processes_[index];
  if (process.remote.version() != plan_.version)
    return fail_host(
        index, format_text("its version is \"{}\", but here it is \"{}\"; install the same version "
                           "on all hosts",
                           escape_controls(process.remote.version()), plan_.version));
  if (const Status sent = process.remote.send_secret(secret_); !sent.ok())
    return fail_host(index, sent.message());
  process.state = HostProcess::State::kGreeted;
  for (const std::string& line : process.remote.kept_lines())
    output_.show_notice(process.name() + ": " + line);
  give_orders();
}

void Driver::set_addresses(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  while (words >> word)
    if (const auto address = SocketAddress::parse(word); address.ok())
      addresses_.push_back(address->text());
  give_orders();
}

// Node 0 gets its order first, because the other nodes must be told where node 0 listens.
void Driver::give_orders() {
  for (std::size_t index = 0; index < processes_.size(); ++index) {
    if (processes_[index].state != HostProcess::State::kGreeted) continue;
    if (deadline_ || (index > 0 && addresses_.empty())) continue;
    if (const Status status = give_order(index); !status.ok()) fail_host(index, status.message());
  }
}

Status Driver::give_order(std::size_t index) {
  HostProcess& process = processes_[index];
  LauncherOrder order = plan_.order;
  order.flags.insert(order.flags.end(), {"-n", std::to_string(process.remote.host().slots)});
  order.has_colors = can_show_colors(STDOUT_FILENO) && can_show_colors(STDERR_FILENO);
  if (const int columns = worker_window(STDERR_FILENO, 0).ws_col; columns > 0)
    order.columns = static_cast<std::uint32_t>(columns);
  order.nodes = static_cast<std::uint32_t>(processes_.size());
  order.node = static_cast<std::uint32_t>(index);
  order.host = process.name();
  order.first_host = processes_.front().name();
  order.environment = process.remote.variables();
  if (index > 0) order.addresses = addresses_;
  if (index == 0 && lost_launchers_ > 0) {
    order.addresses = addresses_;
    order.replaces = replacement();
  }
  order.relayed = relays_.relayed_parts();
  const Bytes bytes = encode(order);
  if (bytes.size() > kOrderBytesMax)
    return Status::fix_call(
        format_text("the environment and the command together have {} bytes; at most {} are "
                    "possible",
                    bytes.size(), kOrderBytesMax));
  FARANDOLE_TRY(process.remote.send({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  process.state = HostProcess::State::kHasOrder;
  process.has_got_order = true;
  return order.relayed ? relays_.begin_relay(process, make_tag(Source::kRelay, index)) : Status();
}

void Driver::handle_event(std::uint64_t tag) {
  const std::size_t index = tag & 0xFFFFFFFFU;
  switch (static_cast<Source>(tag >> 32U)) {
    case Source::kSignals:
      return handle_signals();
    case Source::kCaller:
      poller_.remove(plan_.caller.pidfd);
      // Do not send SIGHUP, because the launchers ignore it under nohup.
      return handle_signal(SIGTERM);
    case Source::kReport:
      return relays_.report_writable();
    case Source::kWritable:
      return output_.sink_writable();
    case Source::kProcess:
      return handle_process_end(index);
    case Source::kInput:
      return processes_[index].remote.input_writable();
    case Source::kStream:
      return output_.stream_readable(index);
    case Source::kRelay:
      if (relays_.serve(processes_[index])) handle_process_end(index);
      return;
    case Source::kDiscovery:
      return;  // this event only wakes the loop, which then calls update_hosts()
  }
}

void Driver::handle_signals() {
  signalfd_siginfo signal_info{};
  while (::read(signals_.get(), &signal_info, sizeof(signal_info)) == sizeof(signal_info))
    handle_signal(static_cast<int>(signal_info.ssi_signo));
}

void Driver::handle_signal(int signal) {
  switch (signal) {
    case SIGCHLD:
      return;
    case SIGWINCH:
      return output_.window_changed();
    case SIGTSTP:
      pass_on_signal(SIGTSTP);
      return stop_after_ctrl_z();
    case SIGCONT:
    case SIGUSR1:
    case SIGUSR2:
      return pass_on_signal(signal);
    default:
      break;
  }
  // While our output has no reader, SIGPIPE arrives again and again.
  if (signal == SIGPIPE && end_signal_ != 0) return;
  if (repeats_.is_repeat(signal, now())) return;
  const bool is_first_signal = end_signal_ == 0;
  if (is_first_signal) end_signal_ = signal;
  pass_on_signal(signal == SIGPIPE ? SIGTERM : signal);
  if (!is_first_signal) {
    skips_waits_ = true;
    if (!inputs_closed_) begin_to_end(kSecondEndTimeout);
  } else if (!all_needed_hosts_take_part()) {
    // The job has not begun, so there are no workers that need time to end.
    begin_to_end(kEndTimeout);
  } else {
    // The launchers kill their workers after the grace time, so the driver must wait longer.
    deadline_ = now() + plan_.grace + kEndTimeout;
  }
}

void Driver::pass_on_signal(int signal) {
  const char byte = static_cast<char>(signal);
  for (HostProcess& process : processes_) {
    if (process.state != HostProcess::State::kHasOrder) continue;
    (void)process.remote.send({&byte, 1});  // if send() fails, the process ends when its input ends
    if (process.relay) process.relay->serve();  // send it now, because SIGTSTP stops us, too
  }
}

void Driver::handle_process_end(std::size_t index) {
  HostProcess& process = processes_[index];
  if (!process.remote.has_ended()) return;
  if (process.relay) process.relay->peer_process_ended();
  // If bytes remain, handle_event() calls this function again when everything is written.
  if (process.relay && !process.relay->has_written_everything() && !skips_waits_) return;
  if (!process.remote.reap()) return;
  // Read the whole output, even if our reader is slow: node 0 may report the end of the job there.
  output_.read_rest(static_cast<int>(index));
  process.state = HostProcess::State::kEnded;
  if (index > 0) process.takes_part = false;
  if (roster_) roster_->launcher_ended(static_cast<int>(index));
  if (index == 0 && replace_lost_first_node()) return;
  if (index > 0 && may_have_more_hosts()) {
    // A host that left by itself stays away. A host that we told to leave may be listed again.
    const bool has_failed = process.remote.end()->failed() && !process.is_leaving;
    const bool is_needed = has_failed || process.was_told_to_leave;
    return is_needed && may_restart(index) ? schedule_restart(index) : void();
  }
  if (index > 0 && plan_.elastic && job_has_begun_) return;  // node 0 knows how the job ends
  if (!process.has_got_order && !process.has_failed && !inputs_closed_ && end_signal_ == 0) {
    const std::string advice = process.remote.advice();
    fail_host(index, process.remote.why_ended() + (advice.empty() ? "" : "; " + advice));
  } else if (!job_has_begun_ && process.remote.end()->failed() && !deadline_ && end_signal_ == 0) {
    // Unless node 0 has ended, wait: its message that the job has begun may still arrive.
    deadline_ = index == 0 ? now() : now() + kOtherErrorsTimeout;
  } else if (was_lost(process) && end_signal_ == 0 && !deadline_) {
    output_.show_error(format_text("{}: {}", process.name(), how_it_ended(process)));
    // Usually the launchers end the job, but not if only our connection to the host is broken.
    deadline_ = now() + kLostConnectionTimeout;
  }
  if (plan_.elastic && index == 0) handle_first_node_end();
}

// If node 0's launcher of an elastic job was lost, starts a new launcher and returns true. The
// workers keep running. After several losses within a short time, the job ends instead.
bool Driver::replace_lost_first_node() {
  HostProcess& process = processes_.front();
  if (!plan_.elastic || !job_has_begun_ || process.job_is_over || deadline_ || end_signal_ != 0)
    return false;
  if (!process.remote.end()->failed()) return false;  // the job is over, and has succeeded
  const bool is_quick = process.join_time && now() < *process.join_time + kQuickLossTime;
  const int failure_count = is_quick ? process.failure_count + 1 : 1;
  if (failure_count > kQuickLossesMax) return false;
  output_.show_notice(
      format_text("the launcher that decides about the members was lost ({}); starting "
                  "another one",
                  how_it_ended(process)));
  ++lost_launchers_;
  replace_process(0, HostEntry(process.remote.host()), failure_count);
  process.join_time = now();
  return true;
}

// What the new launcher of node 0 must know.
Replacement Driver::replacement() const {
  Replacement replaces{.number = lost_launchers_, .epoch = epoch_};
  for (std::size_t node = 0; node < node_numbers_used_; ++node) {
    const HostProcess& process = processes_[node];
    replaces.workers.push_back(static_cast<std::uint32_t>(process.remote.host().slots));
    if (node > 0 && process.takes_part) replaces.nodes.push_back(static_cast<std::uint32_t>(node));
  }
  return replaces;
}

// In a running elastic job: whether the launcher of this host may start again. Otherwise false.
bool Driver::may_restart(std::size_t index) const {
  return index > 0 && may_have_more_hosts() &&
         (!roster_ || roster_->is_wanted(static_cast<int>(index)));
}

// Whether all needed hosts take part. A running elastic job needs no particular host.
bool Driver::all_needed_hosts_take_part() const {
  return (plan_.elastic && job_has_begun_) ||
         std::ranges::all_of(processes_, &HostProcess::has_got_order);
}

bool Driver::may_have_more_hosts() const {
  return plan_.elastic && job_has_begun_ && !deadline_ && end_signal_ == 0 &&
         !processes_.front().job_is_over && processes_.front().remote.is_running();
}

// The pause before the restart doubles with each failure, as it does for a failed worker.
void Driver::schedule_restart(std::size_t index) {
  HostProcess& process = processes_[index];
  if (process.join_time && now() > *process.join_time + plan_.elastic->cooldown_max)
    process.failure_count = 0;
  const Duration pause_max = std::max<Duration>(plan_.elastic->cooldown_max, kRestartPauseMin);
  Duration pause = std::max<Duration>(plan_.elastic->cooldown_min, kRestartPauseMin);
  for (int i = 0; i < process.failure_count && pause < pause_max; ++i) pause *= 2;
  pause = std::min(pause, pause_max);
  ++process.failure_count;
  process.restart_time = now() + pause;
  if (process.why_failed.empty())
    process.why_failed = process.has_got_order ? how_it_ended(process) : process.remote.why_ended();
  // Node 0 reports the loss of a launcher that has received its order. At the end of the job, it
  // does not: then all other launchers end before node 0.
  if (!process.has_got_order)
    output_.show_notice(
        format_text("{}: {}; trying again in {} s", process.name(), process.why_failed,
                    std::chrono::duration_cast<std::chrono::seconds>(pause).count()));
}

void Driver::restart_due_hosts() {
  for (std::size_t index = 0; index < processes_.size(); ++index) {
    HostProcess& process = processes_[index];
    if (process.kill_time && now() >= *process.kill_time) {
      process.kill_time.reset();
      process.remote.signal(SIGKILL);
    }
    if (!process.restart_time || now() < *process.restart_time) continue;
    process.restart_time.reset();
    if (!may_restart(index)) continue;
    if (process.has_got_order)
      output_.show_notice(format_text("{}: {}; starting its part of the job again", process.name(),
                                      process.why_failed));
    // Copy the host, because replace_process() destroys `process`, which owns the original.
    replace_process(index, HostEntry(process.remote.host()), process.failure_count);
  }
}

// Starts the launcher of a host in place of one that has ended.
void Driver::replace_process(std::size_t index, const HostEntry& host, int failure_count) {
  HostProcess& process = processes_[index];
  const int first_rank = process.first_rank;
  std::destroy_at(&process);  // no assignment, because the poller keeps the address of the object
  std::construct_at(&process, host, poller_, tags_of(index), first_rank);
  process.failure_count = failure_count;
  if (roster_) roster_->launcher_started(static_cast<int>(index));
  if (const Status started = start_host(index); !started.ok()) fail_host(index, started.message());
}

void Driver::update_hosts() {
  if (!discovery_ || !job_has_begun_) return;
  if (!may_have_more_hosts()) return discovery_.reset();
  auto update = discovery_->advance(now());
  if (!update.error.empty()) output_.show_notice(update.error + "; the hosts stay as they are");
  if (!update.hosts) return;
  const HostRoster::Changes changes = roster_->update(*update.hosts);
  for (const int node : changes.leaving) {
    HostProcess& process = processes_[static_cast<std::size_t>(node)];
    process.restart_time.reset();
    // A second SIGTERM would kill the workers of the host without a grace time.
    if (process.was_told_to_leave) continue;
    const char leave_signal = SIGTERM;
    process.was_told_to_leave = process.is_leaving = true;
    if (process.state == HostProcess::State::kHasOrder) {
      (void)process.remote.send({&leave_signal, 1});
    } else if (process.remote.is_running()) {
      process.remote.close_input();
      process.remote.signal(SIGTERM);
    }
  }
  for (const int node : changes.listed_again) {
    HostProcess& process = processes_[static_cast<std::size_t>(node)];
    if (process.remote.is_running()) continue;
    process.why_failed = "it is listed again";
    process.restart_time = now();
  }
  if (changes.addition) add_host(*changes.addition);
}

void Driver::add_host(const HostRoster::Changes::Addition& addition) {
  const auto index = static_cast<std::size_t>(addition.node);
  if (index < processes_.size())
    return replace_process(index, addition.host, addition.failed_starts);
  const HostProcess& last_process = processes_.back();
  processes_.emplace_back(addition.host, poller_, tags_of(index),
                          last_process.first_rank + last_process.remote.host().slots);
  next_host_ = processes_.size();
  roster_->launcher_started(addition.node);
  if (const Status started = start_host(index); !started.ok()) fail_host(index, started.message());
}

// Handles a line about another node or a new group. Returns false for any other line.
bool Driver::handle_line_about_node(const std::string& line) {
  if (const auto index = node_in_line(kJoinedNodeLine, line, processes_.size())) {
    processes_[*index].join_time = now();
    processes_[*index].takes_part = true;
    node_numbers_used_ = std::max(node_numbers_used_, *index + 1);
    if (roster_) roster_->node_joined(static_cast<int>(*index));
    return true;
  }
  if (const auto index = node_in_line(kLeavingNodeLine, line, processes_.size())) {
    processes_[*index].is_leaving = true;
    return true;
  }
  if (const auto epoch = number_in_line(kEpochLine, line)) {
    epoch_ = *epoch;
    return true;
  }
  const auto index = node_in_line(kLostNodeLine, line, processes_.size());
  if (index) handle_lost_node(*index);
  return index.has_value();
}

// Kills the process for this host, because ssh would keep a broken connection for a long time.
void Driver::handle_lost_node(std::size_t index) {
  HostProcess& process = processes_[index];
  // If this launcher does not take part, the line is about the launcher that it has replaced.
  if (!std::exchange(process.takes_part, false)) return;
  if (process.state != HostProcess::State::kHasOrder) return;
  process.kill_time = now();
  if (process.is_leaving) *process.kill_time += kLeaveTimeout;  // its launcher is ending by itself
}

// Call it when the job has ended. Then all launchers that node 0 can reach end by themselves.
void Driver::handle_first_node_end() {
  for (HostProcess& process : processes_) {
    process.restart_time.reset();
    if (process.has_got_order || !process.remote.is_running()) continue;
    process.remote.close_input();
    process.remote.signal(SIGTERM);
  }
  if (!deadline_) deadline_ = now() + kEndTimeout;
}

void Driver::fail_host(std::size_t index, const std::string& why, int exit_code) {
  HostProcess& process = processes_[index];
  process.has_failed = true;
  if (index > 0 && plan_.elastic && job_has_begun_) {  // node 0 decides whether the job goes on
    process.why_failed = why;
    process.remote.close_input();
    process.remote.signal(SIGTERM);
    if (process.remote.is_running() || !may_restart(index)) return;
    if (roster_) roster_->launcher_ended(static_cast<int>(index));
    return schedule_restart(index);
  }
  output_.show_error(format_text("cannot start the job on {}: {}", process.name(), why));
  if (start_exit_code_ == 0) start_exit_code_ = exit_code;
  if (process.state == HostProcess::State::kNotStarted) process.state = HostProcess::State::kEnded;
  process.remote.close_input();
  if (!deadline_) deadline_ = now() + kOtherErrorsTimeout;
}

// Call it if launchers have ended before the job began. These launchers have told the user why.
void Driver::fail_hosts_that_ended_early() {
  for (std::size_t index = 0; index < processes_.size(); ++index) {
    const HostProcess& process = processes_[index];
    const auto& end = process.remote.end();
    if (!process.has_got_order || !end || !end->failed()) continue;
    fail_host(index, how_it_ended(process), exit_code_of(process));
  }
}

// Closes the standard inputs, so that all processes end. A process that has not answered yet may
// never read its input, so it gets SIGTERM, too.
void Driver::begin_to_end(Duration time) {
  inputs_closed_ = true;
  for (HostProcess& process : processes_)
    if (!process.has_got_order || start_exit_code_ != 0) process.remote.close_input();
  for (const HostProcess& process : processes_)
    if (process.state == HostProcess::State::kConnecting) process.remote.signal(SIGTERM);
  deadline_ = now() + time;
}

// ssh limits the time to connect, but not the time for which a start-up file of the shell runs.
void Driver::give_up_silent_hosts() {
  for (std::size_t index = 0; index < processes_.size() && !deadline_; ++index) {
    const HostProcess& process = processes_[index];
    if (process.state != HostProcess::State::kConnecting || now() < process.answer_deadline)
      continue;
    if (process.has_failed) continue;  // this process has been told to end
    fail_host(index,
              process.remote.why_silent(format_text(
                  "there is no answer after {} s (--start-timeout)", plan_.start_timeout.count())));
    process.remote.signal(SIGTERM);
  }
}

std::optional<TimePoint> Driver::next_deadline() const {
  std::optional<TimePoint> earliest = deadline_;
  const auto add_candidate = [&earliest](TimePoint time) {
    earliest = earliest ? std::min(*earliest, time) : time;
  };
  for (const HostProcess& process : processes_)
    if (process.remote.must_be_reaped()) add_candidate(now() + kReapRetryInterval);
  if (deadline_) return earliest;
  if (discovery_ && may_have_more_hosts()) add_candidate(discovery_->deadline());
  for (const HostProcess& process : processes_) {
    if (process.restart_time) add_candidate(*process.restart_time);
    if (process.kill_time) add_candidate(*process.kill_time);
    if (process.state == HostProcess::State::kConnecting && !process.has_failed)
      add_candidate(process.answer_deadline);
  }
  return earliest;
}

void Driver::handle_deadline() {
  for (std::size_t index = 0; index < processes_.size(); ++index)
    if (processes_[index].remote.must_be_reaped()) handle_process_end(index);
  give_up_silent_hosts();
  restart_due_hosts();
  update_hosts();
  if (!deadline_) return;
  const bool waits_for_errors = !inputs_closed_ && start_exit_code_ != 0;
  const bool is_over = waits_for_errors && count_connecting_hosts() == 0;
  if (now() < *deadline_ && !is_over) return;
  if (!inputs_closed_) {
    if (job_has_begun_)
      pass_on_signal(SIGTERM);
    else if (start_exit_code_ == 0)
      fail_hosts_that_ended_early();
    return begin_to_end(kEndTimeout);
  }
  for (std::size_t index = 0; index < processes_.size(); ++index) {
    const HostProcess& process = processes_[index];
    process.remote.signal(SIGKILL);
    if (process.relay) handle_process_end(index);
  }
  deadline_ = now() + kEndTimeout;
}

// The number of started hosts that have not answered yet.
std::ptrdiff_t Driver::count_connecting_hosts() const {
  return std::ranges::count(processes_, HostProcess::State::kConnecting, &HostProcess::state);
}

bool Driver::all_ended() const {
  return next_host_ == processes_.size() &&
         std::ranges::none_of(
             processes_, [](const HostProcess& process) { return process.remote.is_running(); });
}

int Driver::exit_code() const {
  if (start_exit_code_ != 0) return start_exit_code_;
  if (end_signal_ != 0 && !all_needed_hosts_take_part()) return 128 + end_signal_;
  if (end_signal_ != 0 && was_lost(processes_.front())) return 128 + end_signal_;
  int code = exit_code_of(processes_.front());
  // In an elastic job, node 0 may learn of the end of all workers before it gets the signal.
  if (plan_.elastic && job_has_begun_)
    return end_signal_ != 0 && code == 1 ? 128 + end_signal_ : code;
  for (const HostProcess& process : processes_)
    if (code == 0) code = exit_code_of(process);
  return end_signal_ == SIGPIPE && code != 0 ? 128 + SIGPIPE : code;
}

int report_error(const std::string& why) {
  std::fprintf(stderr, "farandole: %s\n", why.c_str());
  return 1;
}

}  // namespace

int run_driver(const DriverPlan& plan) {
  const OriginalProcessState state = save_and_adjust_state();
  const sigset_t handled = handled_signals();
  block_signals(handled);
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid())
    return report_error(format_text("cannot receive signals: signalfd: {}", std::strerror(errno)));
  auto poller = Poller::create();
  if (!poller.ok()) return report_error(poller.status().message());
  auto secret = JobSecret::generate();
  if (!secret.ok()) return report_error(secret.status().message());
  std::optional<RankFiles> files;
  if (!plan.output_folder.empty()) {
    auto created_files = RankFiles::create(plan.output_folder, slots_of(plan.hosts));
    if (!created_files.ok()) return report_error(created_files.status().message());
    files = std::move(created_files).value();
  }
  DriverPlan plan_with_hosts = plan;
  if (plan.discovery) {
    auto search_result =
        find_first_hosts(*plan.discovery, {plan.elastic->shortage_max, signals, plan.caller.pidfd},
                         state, [](const std::string& line) { (void)report_error(line); });
    if (!search_result.ok()) return report_error(search_result.status().message());
    if (search_result->signal != 0) return 128 + search_result->signal;
    plan_with_hosts.hosts = search_result->hosts;
  }
  // The launcher that decides about the members runs on the driver's own host. So an elastic job
  // can go on after the loss of any other host.
  if (plan.elastic) plan_with_hosts.hosts.insert(plan_with_hosts.hosts.begin(), own_host());
  Driver driver(plan_with_hosts, std::move(poller).value(), std::move(secret).value(),
                std::move(files), state, signals);
  return driver.run();
}

}  // namespace farandole
