#include "driver/driver.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/format.h"
#include "base/poller.h"
#include "base/process_end.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "driver/passed_environment.h"
#include "launcher/job_output.h"
#include "launcher/signal_setup.h"
#include "launcher/worker_environment.h"
#include "launcher/worker_process.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/job_secret.h"
#include "network/tcp/socket_address.h"
#include "output/colors.h"
#include "output/worker_stream.h"

namespace farandole {
namespace {

constexpr int kConnectingMax = 8;  // sshd begins to refuse connections from 10 on (MaxStartups)
constexpr int kPipeBytes = 1 << 20;
static_assert(kOrderBytesMax + 4096 < kPipeBytes, "an order and all signals fit in the pipe");
constexpr std::size_t kErrorLinesMax = 20;
constexpr int kSshError = 255;
// After a host could not be started, the others have this time to show that they cannot, either.
constexpr auto kOtherErrorsTime = std::chrono::seconds(3);
// Then, or after a second signal, our processes have this time to end.
constexpr auto kEndTime = std::chrono::seconds(20);

enum class Source : std::uint64_t { kSignals, kWritable, kProcess, kStream };
constexpr std::uint64_t tag(Source source, std::uint64_t index = 0) {
  return static_cast<std::uint64_t>(source) << 32U | index;
}

TimePoint now() { return std::chrono::steady_clock::now(); }

// The process that we have started for one host.
struct Remote {
  enum class State { kWaiting, kConnecting, kGreeted, kOrdered, kStarted, kEnded };

  HostEntry host;
  bool is_own_host = false;
  std::vector<std::string> command{};
  State state = State::kWaiting;
  StartedWorker process{};
  Descriptor input{};  // to the standard input of the process
  std::vector<std::string>
      errors{};  // what it has written to its standard error before the greeting
  std::optional<ProcessEnd> end{};
  TimePoint connecting_since{};
};

std::string own_program() {
  std::array<char, 4096> path{};
  const ssize_t count = ::readlink("/proc/self/exe", path.data(), path.size());
  return count > 0 ? std::string(path.data(), static_cast<std::size_t>(count)) : "farandole";
}

class Driver {
 public:
  Driver(const DriverPlan& plan, Poller poller, JobSecret secret, const OriginalState& state,
         const Descriptor& signals)
      : plan_(plan),
        poller_(std::move(poller)),
        secret_(std::move(secret)),
        state_(state),
        signals_(signals),
        output_options_{.prefix = *LinePrefix::parse(""),
                        .shown_ranks = {},
                        .folder = {},
                        .uses_terminals = false},
        output_(poller_, {tag(Source::kStream), tag(Source::kWritable)}, output_options_) {
    for (const HostEntry& host : plan.hosts)
      remotes_.push_back({.host = host, .is_own_host = is_own_host(host.name)});
  }

  int run();

 private:
  void start_more();
  Status start(std::size_t index);
  bool take_line(std::size_t index, std::size_t stream, const std::string& line);
  void take_early_line(std::size_t index, std::size_t stream, const std::string& line);
  void greeted(std::size_t index);
  void set_addresses(const std::string& line);
  void give_orders();
  Status give_order(std::size_t index);
  void serve(std::uint64_t ready);
  void handle_signals();
  void handle_signal(int signal);
  void pass_on(int signal);
  void process_ended(std::size_t index);
  static std::string why_not_started(const Remote& remote);
  void start_failed(std::size_t index, int exit_code, const std::string& why);
  void begin_ending(Duration time);
  void time_passed();
  bool all_ended() const;
  std::optional<TimePoint> next_deadline() const;
  int exit_code() const;

  const DriverPlan& plan_;
  Poller poller_;
  JobSecret secret_;
  const OriginalState& state_;
  const Descriptor& signals_;
  OutputOptions output_options_;
  JobOutput output_;
  std::vector<Remote> remotes_;
  std::size_t next_ = 0;                // the first host that was not started yet
  std::vector<std::string> addresses_;  // of node 0's launcher
  bool started_ = false;                // all nodes have come
  int start_failure_code_ = 0;
  int last_signal_ = 0;
  bool inputs_closed_ = false;
  std::optional<TimePoint> deadline_;
};

int Driver::run() {
  if (!poller_.add(signals_.get(), Poller::Interest::kReading, tag(Source::kSignals))) {
    output_.error("the driver cannot watch its own descriptors");
    return 1;
  }
  output_.set_line_taker([this](int index, std::size_t stream, const std::string& line) {
    return take_line(static_cast<std::size_t>(index), stream, line);
  });
  output_.begin(0, {});  // the launchers on the hosts add the prefixes
  while (start_more(), !all_ended()) {
    for (const std::uint64_t ready : poller_.wait(next_deadline())) serve(ready);
    if (output_.closed()) handle_signal(SIGPIPE);
    time_passed();
  }
  output_.read_remaining();
  output_.close();
  while (!output_.everything_is_written() && last_signal_ == 0)
    for (const std::uint64_t ready : poller_.wait(std::nullopt)) serve(ready);
  if (const auto lost = output_.lost_output()) {
    std::fprintf(stderr, "farandole: %s\n", lost->c_str());
    return exit_code() == 0 ? 1 : exit_code();
  }
  return exit_code();
}

void Driver::start_more() {
  const auto connecting = [this] {
    return std::ranges::count(remotes_, Remote::State::kConnecting, &Remote::state);
  };
  while (next_ < remotes_.size() && !deadline_ && connecting() < kConnectingMax) {
    const std::size_t index = next_++;
    if (const Status started = start(index); !started.ok())
      start_failed(index, 1, started.message());
  }
  if (deadline_) next_ = remotes_.size();
}

Status Driver::start(std::size_t index) {
  Remote& remote = remotes_[index];
  const std::vector<std::string> words{own_program(), "agent"};
  remote.command = remote.is_own_host ? words : ssh_command(remote.host, plan_.ssh, words);
  FARANDOLE_TRY_ASSIGN(const JobOutput::WorkerEnds ends, output_.add_worker());
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    return Status::stop(format_text("pipe2: {}", std::strerror(errno)));
  const Descriptor input(pipe[0]);
  remote.input = Descriptor(pipe[1]);
  ::fcntl(remote.input.get(), F_SETPIPE_SZ, kPipeBytes);
  ::fcntl(remote.input.get(), F_SETFL, O_NONBLOCK);
  FARANDOLE_TRY_ASSIGN(remote.process,
                       start_worker({.command = remote.command,
                                     .environment = merge_environment({inherited_environment()}),
                                     .inherited = {},
                                     .standard_input = input.get(),
                                     .standard_output = ends.standard_output.get(),
                                     .standard_error = ends.standard_error.get(),
                                     .state = state_}));
  remote.state = Remote::State::kConnecting;
  remote.connecting_since = now();
  if (poller_.add(remote.process.pidfd.get(), Poller::Interest::kReading,
                  tag(Source::kProcess, index)))
    return {};
  return Status::stop("it cannot be watched; the limit is in /proc/sys/fs/epoll/max_user_watches");
}

// What comes before the greeting is not of our program: messages of ssh, or of the shell's start-up
// files. What comes before kStartedLine on the standard output is for us.
bool Driver::take_line(std::size_t index, std::size_t stream, const std::string& line) {
  Remote& remote = remotes_[index];
  if (remote.state == Remote::State::kConnecting) {
    take_early_line(index, stream, line);
    return true;
  }
  if (remote.state != Remote::State::kOrdered || stream != 0) return false;
  if (line == kStartedLine) {
    remote.state = Remote::State::kStarted;
    started_ = true;
  }
  if (line.starts_with("listens ")) set_addresses(line);
  return true;
}

void Driver::take_early_line(std::size_t index, std::size_t stream, const std::string& line) {
  Remote& remote = remotes_[index];
  const std::string expected = greeting(plan_.version);
  if (stream == 0 && line == expected) {
    greeted(index);
  } else if (stream == 0 && line.starts_with(greeting(""))) {
    start_failed(index, 1,
                 format_text("its version is \"{}\", but here it is \"{}\"; install the same "
                             "version on all hosts",
                             escape_controls(line), expected));
  } else if (!line.empty() && remote.errors.size() < kErrorLinesMax) {
    remote.errors.push_back(escape_controls(line));
  }
}

void Driver::greeted(std::size_t index) {
  Remote& remote = remotes_[index];
  remote.state = Remote::State::kGreeted;
  for (const std::string& line : remote.errors) output_.notice(remote.host.name + ": " + line);
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

// Node 0 gets its order first, because the others must know where it listens.
void Driver::give_orders() {
  for (std::size_t index = 0; index < remotes_.size(); ++index) {
    if (remotes_[index].state != Remote::State::kGreeted) continue;
    if (deadline_ || (index > 0 && addresses_.empty())) continue;
    if (const Status given = give_order(index); !given.ok())
      start_failed(index, 1, given.message());
  }
}

Status Driver::give_order(std::size_t index) {
  Remote& remote = remotes_[index];
  AgentOrder order = plan_.order;
  order.flags.insert(order.flags.end(), {"-n", std::to_string(remote.host.slots)});
  order.has_colors = wants_colors(STDOUT_FILENO) && wants_colors(STDERR_FILENO);
  if (const int columns = worker_window(STDERR_FILENO, 0).ws_col; columns > 0)
    order.columns = static_cast<std::uint32_t>(columns);
  order.nodes = static_cast<std::uint32_t>(remotes_.size());
  order.node = static_cast<std::uint32_t>(index);
  order.host = remote.host.name;
  order.first_host = remotes_.front().host.name;
  if (!remote.is_own_host)
    order.environment = passed_environment(merge_environment({inherited_environment()}));
  if (index > 0) order.addresses = addresses_;
  const Bytes bytes = encode(order);
  if (bytes.size() > kOrderBytesMax)
    return Status::fix_call(
        format_text("the environment and the command together have {} bytes; at most {} are "
                    "possible",
                    bytes.size(), kOrderBytesMax));
  if (::write(remote.input.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    return Status::stop(format_text("its order cannot be sent: {}", std::strerror(errno)));
  FARANDOLE_TRY(secret_.write_to(remote.input.get()));
  remote.state = Remote::State::kOrdered;
  return {};
}

void Driver::serve(std::uint64_t ready) {
  const std::size_t index = ready & 0xFFFFFFFFU;
  switch (static_cast<Source>(ready >> 32U)) {
    case Source::kSignals:
      return handle_signals();
    case Source::kWritable:
      return output_.sink_writable();
    case Source::kProcess:
      return process_ended(index);
    case Source::kStream:
      return output_.stream_readable(index);
  }
}

void Driver::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info))
    handle_signal(static_cast<int>(info.ssi_signo));
}

void Driver::handle_signal(int signal) {
  switch (signal) {
    case SIGCHLD:
      return;
    case SIGWINCH:
      return output_.window_changed();
    case SIGTSTP:
      pass_on(SIGTSTP);
      ::raise(SIGSTOP);
      return;
    case SIGCONT:
    case SIGUSR1:
    case SIGUSR2:
      return pass_on(signal);
    default:
      break;
  }
  // The reader of our output stays away, so this comes again and again.
  if (signal == SIGPIPE && last_signal_ != 0) return;
  const bool is_first = std::exchange(last_signal_, signal) == 0;
  pass_on(signal == SIGPIPE ? SIGTERM : signal);
  // Before all nodes have come, there are no workers to end gracefully.
  if (!started_ || !is_first) begin_ending(kEndTime);
}

void Driver::pass_on(int signal) {
  const char byte = static_cast<char>(signal);
  for (Remote& remote : remotes_)
    if (remote.state >= Remote::State::kOrdered && remote.input.valid())
      (void)::write(remote.input.get(), &byte, 1);
}

void Driver::process_ended(std::size_t index) {
  Remote& remote = remotes_[index];
  int status = 0;
  if (::waitpid(remote.process.pid, &status, WNOHANG) != remote.process.pid) return;
  poller_.remove(remote.process.pidfd.get());
  for (const std::size_t stream : {0U, 1U}) output_.stream_readable(2 * index + stream);
  const ProcessEnd end = WIFSIGNALED(status) ? ProcessEnd{.signal = WTERMSIG(status)}
                                             : ProcessEnd{.code = WEXITSTATUS(status)};
  remote.input.reset();
  remote.end = end;
  const auto state = std::exchange(remote.state, Remote::State::kEnded);
  const bool is_expected = inputs_closed_ || last_signal_ != 0;
  if (is_expected) return;
  if (state < Remote::State::kOrdered)
    start_failed(index, 1, why_not_started(remote));
  else if (state == Remote::State::kOrdered)
    start_failed(index, end.exit_code(), "");  // it has said why
  else if (!remote.is_own_host && end.code == kSshError)
    output_.error(format_text("the connection to {} has ended", remote.host.name));
}

std::string Driver::why_not_started(const Remote& remote) {
  std::string why = join_text(remote.errors, "; ");
  if (why.empty())
    why = format_text("`{}` {} {}", shell_text(remote.command),
                      remote.end->signal != 0 ? "was" : "has", describe(*remote.end));
  const std::string hint = hint_for_failed_start(remote.command, remote.end->code, remote.errors);
  return hint.empty() ? why : why + "; " + hint;
}

// `why` is empty if the user knows it already.
void Driver::start_failed(std::size_t index, int exit_code, const std::string& why) {
  Remote& remote = remotes_[index];
  if (!why.empty())
    output_.error(format_text("cannot start the job on {}: {}", remote.host.name, why));
  if (start_failure_code_ == 0) start_failure_code_ = std::max(exit_code, 1);
  if (remote.state == Remote::State::kWaiting) remote.state = Remote::State::kEnded;
  remote.input.reset();
  if (!deadline_) deadline_ = now() + kOtherErrorsTime;
}

// Closes the standard inputs of the processes, so that these end: of all if the job has not
// started, and otherwise of none, because the launchers end their workers.
void Driver::begin_ending(Duration time) {
  inputs_closed_ = true;
  if (!started_)
    for (Remote& remote : remotes_) remote.input.reset();
  deadline_ = now() + time;
}

void Driver::time_passed() {
  for (std::size_t index = 0; index < remotes_.size(); ++index) {
    const Remote& remote = remotes_[index];
    if (remote.state == Remote::State::kConnecting && !deadline_ &&
        now() >= remote.connecting_since + plan_.start_timeout)
      start_failed(index, 1,
                   join_text(remote.errors, "; ") +
                       format_text("{}there is no answer after {} s (--start-timeout)",
                                   remote.errors.empty() ? "" : "; ", plan_.start_timeout.count()));
  }
  if (!deadline_ || now() < *deadline_) return;
  if (!inputs_closed_) return begin_ending(kEndTime);
  for (Remote& remote : remotes_)
    if (remote.process.pid > 0 && !remote.end) ::kill(-remote.process.pid, SIGKILL);
  deadline_ = now() + kEndTime;
}

std::optional<TimePoint> Driver::next_deadline() const {
  if (deadline_) return deadline_;
  std::optional<TimePoint> first;
  for (const Remote& remote : remotes_) {
    if (remote.state != Remote::State::kConnecting) continue;
    const TimePoint limit = remote.connecting_since + plan_.start_timeout;
    if (!first || limit < *first) first = limit;
  }
  return first;
}

bool Driver::all_ended() const {
  return next_ == remotes_.size() && std::ranges::all_of(remotes_, [](const Remote& remote) {
           return remote.end.has_value() || remote.process.pid == 0;
         });
}

int Driver::exit_code() const {
  if (start_failure_code_ != 0) return start_failure_code_;
  if (last_signal_ != 0 && !started_) return 128 + last_signal_;
  const auto code_of = [](const Remote& remote) {
    if (!remote.end) return 1;
    const bool is_lost = !remote.is_own_host && remote.end->code == kSshError;
    return is_lost ? 1 : remote.end->exit_code();
  };
  int code = code_of(remotes_.front());
  for (const Remote& remote : remotes_)
    if (code == 0) code = code_of(remote);
  return last_signal_ == SIGPIPE && code != 0 ? 128 + SIGPIPE : code;
}

int report(const std::string& why) {
  std::fprintf(stderr, "farandole: %s\n", why.c_str());
  return 1;
}

}  // namespace

bool is_own_host(const std::string& name) {
  if (name == "localhost") return true;
  if (const auto address = SocketAddress::parse_ip(name); address.ok()) {
    const auto of_host = list_interface_addresses();
    return address->is_loopback() ||
           (of_host.ok() &&
            std::ranges::find(*of_host, *address, &InterfaceAddress::address) != of_host->end());
  }
  std::array<char, 256> own{};
  if (::gethostname(own.data(), own.size() - 1) != 0) return false;
  const std::string full = own.data();
  return name == full || name == full.substr(0, full.find('.'));
}

int run_driver(const DriverPlan& plan) {
  const OriginalState state = save_and_adjust_state();
  const sigset_t handled = handled_signals();
  block_signals(handled);
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid())
    return report(format_text("cannot receive signals: signalfd: {}", std::strerror(errno)));
  auto poller = Poller::create();
  if (!poller.ok()) return report(poller.status().message());
  auto secret = JobSecret::generate();
  if (!secret.ok()) return report(secret.status().message());
  Driver driver(plan, std::move(poller).value(), std::move(secret).value(), state, signals);
  return driver.run();
}

}  // namespace farandole
