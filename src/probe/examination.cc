#include "probe/examination.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/process_end.h"
#include "base/time_point.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "driver/driver.h"
#include "driver/passed_environment.h"
#include "launcher/signal_setup.h"
#include "network/tcp/job_secret.h"
#include "output/line_splitter.h"
#include "probe/pairing.h"
#include "probe/probe_lines.h"
#include "workers/worker_environment.h"
#include "workers/worker_process.h"

namespace farandole {
namespace {

constexpr auto kFactsTime = std::chrono::seconds(20);
constexpr auto kClockTime = std::chrono::seconds(10);
constexpr auto kAttemptTime = std::chrono::seconds(11);  // of a probe, with a measurement
constexpr std::size_t kAttemptsAtOnce = 8;
constexpr auto kEndTime = std::chrono::seconds(5);
constexpr int kClockQuestions = 8;
constexpr std::size_t kErrorLinesMax = 20;
constexpr std::size_t kAllAddressesHostsMax = 8;  // with more hosts, one address is measured

TimePoint now() { return std::chrono::steady_clock::now(); }

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// One of the two streams that we read from a probe.
struct Stream {
  Descriptor descriptor{};
  LineSplitter splitter{kProbeLineBytesMax};
  bool is_greeted = false;
};

struct HostProbe {
  enum class State { kWaiting, kConnecting, kGreeted, kReady, kEnded };

  HostEntry host;
  bool is_own_host = false;
  std::vector<std::string> command{};
  State state = State::kWaiting;
  StartedWorker started{};
  TimePoint answer_by = TimePoint::max();
  Descriptor input{};
  std::string unsent{};
  std::array<Stream, 2> streams{};
  std::vector<std::string> errors{};  // what it has shown, apart from answers
  double clock_asked = 0;
  std::size_t questions = 0;  // that it has not answered yet
  HostReport report{};
};

using State = HostProbe::State;

class Examiner {
 public:
  Examiner(const ExaminationPlan& plan, const OriginalState& state, JobSecret secret)
      : plan_(plan), state_(state), secret_(std::move(secret)) {
    for (const HostEntry& host : plan.hosts) {
      probes_.push_back({.host = host, .is_own_host = is_own_host(host)});
      probes_.back().report.name = host.name;
    }
  }
  ~Examiner() { end_all(); }
  Examiner(const Examiner&) = delete;
  Examiner& operator=(const Examiner&) = delete;

  Survey run();

 private:
  void start_all();
  Status start(HostProbe& probe);
  void compare_clocks();
  void try_all_addresses();
  void measure_all();
  void measure(std::size_t from, std::size_t to);
  std::vector<Target> targets_of(std::size_t from) const;

  void pump(const std::function<bool()>& done, TimePoint deadline);
  void write_to(HostProbe& probe);
  void read_from(HostProbe& probe, std::size_t stream);
  void take_line(HostProbe& probe, std::size_t stream, const std::string& line);
  void take_answer(HostProbe& probe, const ProbeAnswer& answer);
  bool is_possible(const HostProbe& probe, const Attempt& attempt) const;
  void greeted(HostProbe& probe);
  void ask(HostProbe& probe, const ProbeOrder& order, std::size_t answers);
  void wait_for_answers(Duration time);
  void process_ended(HostProbe& probe);
  void fail(HostProbe& probe, const std::string& why, const std::string& advice);
  void give_up_silent_hosts();
  void end_all();
  std::ptrdiff_t count(State state) const {
    return std::ranges::count(probes_, state, &HostProbe::state);
  }
  void show(const std::string& progress);

  const ExaminationPlan& plan_;
  const OriginalState& state_;
  JobSecret secret_;
  std::vector<HostProbe> probes_;
  std::string shown_;  // the progress on the terminal
};

Survey Examiner::run() {
  start_all();
  compare_clocks();
  try_all_addresses();
  measure_all();
  show("");
  end_all();
  Survey survey{.hosts = {}, .ports = plan_.ports};
  for (HostProbe& probe : probes_) survey.hosts.push_back(std::move(probe.report));
  return survey;
}

void Examiner::start_all() {
  const auto done = [this] {
    for (HostProbe& probe : probes_) {
      if (probe.state != State::kWaiting || count(State::kConnecting) >= kSshConnectionsAtOnce)
        continue;
      if (const Status started = start(probe); !started.ok()) fail(probe, started.message(), "");
    }
    show(format_text("{} of {} hosts have answered", count(State::kReady), probes_.size()));
    return count(State::kReady) + count(State::kEnded) ==
           static_cast<std::ptrdiff_t>(probes_.size());
  };
  pump(done, TimePoint::max());
}

Status Examiner::start(HostProbe& probe) {
  const std::vector<std::string> words{path_on_hosts(), "probe"};
  probe.command = probe.is_own_host ? words : ssh_command(probe.host, plan_.ssh, words);
  std::array<std::array<int, 2>, 3> pipes{};
  std::array<Descriptor, 3> theirs;
  std::array<Descriptor, 3> ours;
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    if (::pipe2(pipes.at(i).data(), O_CLOEXEC) != 0)
      return Status::stop(format_text("pipe2: {} (look at `ulimit -n`)", std::strerror(errno)));
    const std::size_t our_end = i == STDIN_FILENO ? 1 : 0;
    ours.at(i) = Descriptor(pipes.at(i).at(our_end));
    theirs.at(i) = Descriptor(pipes.at(i).at(1 - our_end));
    ::fcntl(ours.at(i).get(), F_SETFL, O_NONBLOCK);
  }
  FARANDOLE_TRY_ASSIGN(probe.started,
                       start_worker({.command = probe.command,
                                     .environment = merge_environment({inherited_environment()}),
                                     .inherited = {},
                                     .standard_input = theirs[STDIN_FILENO].get(),
                                     .standard_output = theirs[STDOUT_FILENO].get(),
                                     .standard_error = theirs[STDERR_FILENO].get(),
                                     .state = state_}));
  probe.input = std::move(ours[STDIN_FILENO]);
  probe.streams[0].descriptor = std::move(ours[STDOUT_FILENO]);
  probe.streams[1].descriptor = std::move(ours[STDERR_FILENO]);
  probe.state = State::kConnecting;
  probe.answer_by = now() + plan_.start_timeout;
  return {};
}

// The fastest answer is the most exact one (Cristian's algorithm, as in clock_offset.h).
void Examiner::compare_clocks() {
  for (int question = 0; question < kClockQuestions; ++question) {
    for (HostProbe& probe : probes_) {
      if (probe.state != State::kReady) continue;
      probe.clock_asked = wall_seconds();
      ask(probe, ClockOrder(), 1);
    }
    wait_for_answers(kClockTime);
  }
}

// The targets of one host begin with its neighbour in the list, so that not all hosts try the same
// one at the same time.
std::vector<Target> Examiner::targets_of(std::size_t from) const {
  std::vector<Target> targets;
  for (std::size_t step = 1; step < probes_.size(); ++step) {
    const std::size_t to = (from + step) % probes_.size();
    if (probes_[to].state != State::kReady) continue;
    for (const OfferedAddress& offered : probes_[to].report.facts->addresses)
      targets.push_back({static_cast<std::uint32_t>(to), offered.address});
  }
  return targets;
}

void Examiner::try_all_addresses() {
  std::size_t most = 0;
  for (std::size_t from = 0; from < probes_.size(); ++from) {
    if (probes_[from].state != State::kReady) continue;
    const auto targets = targets_of(from);
    most = std::max(most, targets.size());
    if (!targets.empty()) ask(probes_[from], ConnectOrder{.targets = targets}, targets.size());
  }
  show("each host tries the addresses of the others");
  wait_for_answers(kAttemptTime * (1 + most / kAttemptsAtOnce));
}

// Measures one direction of a pair after the other, because both share the processor of each host.
void Examiner::measure_all() {
  std::size_t most = 1;  // addresses of one host
  for (const HostProbe& probe : probes_)
    if (probe.report.facts) most = std::max(most, probe.report.facts->addresses.size());
  const auto rounds = rounds_of_pairs(probes_.size());
  for (std::size_t round = 0; round < rounds.size(); ++round)
    for (const bool is_back : {false, true}) {
      show(format_text("measuring: round {} of {}", 2 * round + (is_back ? 2 : 1),
                       2 * rounds.size()));
      for (const auto& [one, other] : rounds[round])
        is_back ? measure(other, one) : measure(one, other);
      wait_for_answers(kAttemptTime * most);
    }
}

void Examiner::measure(std::size_t from, std::size_t to) {
  if (probes_[from].state != State::kReady || probes_[to].state != State::kReady) return;
  ConnectOrder order{.targets = {}, .measures = true};
  for (const Attempt& attempt : probes_[from].report.attempts)
    if (attempt.to == to && attempt.failure == Failure::kNone)
      order.targets.push_back({attempt.to, attempt.address});
  if (order.targets.empty()) return;
  if (probes_.size() > kAllAddressesHostsMax) order.targets.resize(1);
  ask(probes_[from], order, order.targets.size());
}

void Examiner::ask(HostProbe& probe, const ProbeOrder& order, std::size_t answers) {
  probe.unsent += encode(order) + "\n";
  probe.questions += answers;
  write_to(probe);
}

void Examiner::wait_for_answers(Duration time) {
  for (HostProbe& probe : probes_)
    if (probe.questions > 0) probe.answer_by = now() + time;
  const auto done = [this] {
    return std::ranges::all_of(probes_, [](const HostProbe& probe) {
      return probe.state != State::kReady || probe.questions == 0;
    });
  };
  pump(done, TimePoint::max());
  for (HostProbe& probe : probes_) probe.answer_by = TimePoint::max();
}

// Reads and writes until `done`, or until the deadline.
void Examiner::pump(const std::function<bool()>& done, TimePoint deadline) {
  while (!done() && now() < deadline) {
    std::vector<pollfd> entries;
    TimePoint until = std::min(deadline, now() + std::chrono::seconds(1));
    for (const HostProbe& probe : probes_) {
      entries.push_back({probe.streams[0].descriptor.get(), POLLIN, 0});
      entries.push_back({probe.streams[1].descriptor.get(), POLLIN, 0});
      entries.push_back({probe.started.pidfd.get(), POLLIN, 0});
      entries.push_back({probe.unsent.empty() ? -1 : probe.input.get(), POLLOUT, 0});
      until = std::min(until, probe.answer_by);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now());
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    for (std::size_t i = 0; i < probes_.size(); ++i) {
      HostProbe& probe = probes_[i];
      if (entries[4 * i].revents != 0) read_from(probe, 0);
      if (entries[4 * i + 1].revents != 0) read_from(probe, 1);
      if (entries[4 * i + 3].revents != 0) write_to(probe);
      if (entries[4 * i + 2].revents != 0) process_ended(probe);
    }
    give_up_silent_hosts();
  }
}

void Examiner::write_to(HostProbe& probe) {
  const ssize_t count = ::write(probe.input.get(), probe.unsent.data(), probe.unsent.size());
  if (count > 0) probe.unsent.erase(0, static_cast<std::size_t>(count));
  if (count < 0 && errno != EAGAIN && errno != EINTR) probe.unsent.clear();  // it has ended
}

void Examiner::read_from(HostProbe& probe, std::size_t stream) {
  Stream& source = probe.streams.at(stream);
  std::array<char, 64 * 1024> bytes{};
  for (;;) {
    const ssize_t count = ::read(source.descriptor.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    const auto pieces = count > 0
                            ? source.splitter.push({bytes.data(), static_cast<std::size_t>(count)})
                            : source.splitter.finish();
    for (const OutputPiece& piece : pieces)
      if (piece.finished || count <= 0) take_line(probe, stream, piece.text);
    if (count <= 0) return source.descriptor.reset();
  }
}

// What comes before the greeting is not of our program: messages of ssh, or of the shell's start-up
// files.
void Examiner::take_line(HostProbe& probe, std::size_t stream, const std::string& line) {
  Stream& source = probe.streams.at(stream);
  if (line.empty()) return;
  if (!source.is_greeted && line.starts_with(kProbeGreeting)) {
    source.is_greeted = true;
    if (stream == 0) greeted(probe);
    return;
  }
  if (stream == 0 && source.is_greeted) {
    if (const auto answer = decode_probe_answer(line)) take_answer(probe, *answer);
    return;
  }
  if (probe.errors.size() < kErrorLinesMax) probe.errors.push_back(escape_controls(line));
}

void Examiner::greeted(HostProbe& probe) {
  if (probe.state != State::kConnecting) return;
  probe.state = State::kGreeted;
  probe.answer_by = now() + kFactsTime;
  if (const Status written = secret_.write_to(probe.input.get()); !written.ok())
    return fail(probe, written.message(), "");
  BeginOrder order{.hosts = {},
                   .number = static_cast<std::uint32_t>(&probe - probes_.data()),
                   .environment = {}};
  for (const HostEntry& host : plan_.hosts) order.hosts.push_back(host.name);
  if (!probe.is_own_host)
    order.environment = passed_environment(merge_environment({inherited_environment()}));
  order.environment.insert(order.environment.end(), plan_.settings.begin(), plan_.settings.end());
  ask(probe, order, 1 + order.hosts.size());
}

void Examiner::take_answer(HostProbe& probe, const ProbeAnswer& answer) {
  const bool is_late = probe.state == State::kReady && std::holds_alternative<NameLookup>(answer);
  if (probe.questions > 0 && !is_late) --probe.questions;
  HostReport& report = probe.report;
  if (const auto* facts = std::get_if<HostFacts>(&answer)) {
    report.facts = *facts;
  } else if (const auto* lookup = std::get_if<NameLookup>(&answer)) {
    report.lookups.push_back(*lookup);
  } else if (const auto* clock = std::get_if<ClockAnswer>(&answer)) {
    const double half_round_trip = (wall_seconds() - probe.clock_asked) / 2;
    const double offset =
        static_cast<double>(clock->wall_nanoseconds) / 1e9 - (probe.clock_asked + half_round_trip);
    if (!report.clock || half_round_trip < report.clock->error_seconds)
      report.clock = {.offset_seconds = offset, .error_seconds = half_round_trip};
  } else if (const auto* attempt = std::get_if<Attempt>(&answer);
             attempt != nullptr && is_possible(probe, *attempt)) {
    const auto same = std::ranges::find_if(report.attempts, [&](const Attempt& other) {
      return other.to == attempt->to && other.address == attempt->address;
    });
    if (same == report.attempts.end())
      report.attempts.push_back(*attempt);
    else
      *same = *attempt;
  }
  if (probe.state != State::kGreeted || probe.questions > 0) return;
  if (!report.facts)
    return fail(probe, "its probe has said nothing about the host",
                "install the same version of Farandole on all hosts");
  probe.state = State::kReady;
  probe.answer_by = TimePoint::max();
}

// A probe of another version may answer differently.
bool Examiner::is_possible(const HostProbe& probe, const Attempt& attempt) const {
  return attempt.to < probes_.size() && &probes_[attempt.to] != &probe;
}

void Examiner::process_ended(HostProbe& probe) {
  const auto end = reap(probe.started.pid);
  if (!end) return;
  for (const std::size_t stream : {0U, 1U})
    if (probe.streams.at(stream).descriptor.valid()) read_from(probe, stream);
  probe.started.pidfd.reset();
  probe.started.pid = 0;
  if (probe.state == State::kEnded) return;
  std::string why = join_text(probe.errors, "; ");
  if (why.empty())
    why = format_text("`{}` {} {} without a message", probe.command.front(),
                      end->signal != 0 ? "was" : "has", describe(*end));
  const bool is_older = why.find("there is no command `probe`") != std::string::npos;
  fail(probe, why,
       is_older ? "install the same version of Farandole on all hosts"
                : hint_for_failed_start(probe.command, end->code, probe.errors));
}

void Examiner::fail(HostProbe& probe, const std::string& why, const std::string& advice) {
  probe.report.start_error = why;
  probe.report.start_advice = advice;
  probe.state = State::kEnded;
  probe.answer_by = TimePoint::max();
  probe.unsent.clear();
  probe.input.reset();
  if (probe.started.pid > 0) ::kill(-probe.started.pid, SIGTERM);
}

void Examiner::give_up_silent_hosts() {
  for (HostProbe& probe : probes_) {
    if (now() < probe.answer_by) continue;
    if (probe.state == State::kGreeted && probe.report.facts) {  // only names are missing
      probe.state = State::kReady;
      probe.questions = 0;
      probe.answer_by = TimePoint::max();
      continue;
    }
    std::string why = join_text(probe.errors, "; ");
    if (!why.empty()) why += "; ";
    fail(probe,
         why + (probe.state == State::kConnecting
                    ? format_text("there is no answer after {} s (FARANDOLE_START_TIMEOUT)",
                                  plan_.start_timeout.count())
                    : std::string("its probe has stopped answering")),
         hint_for_failed_start(probe.command, kSshError, {}));
  }
}

// Closes the standard inputs, so that the probes end, and kills what does not end.
void Examiner::end_all() {
  for (HostProbe& probe : probes_) {
    probe.input.reset();
    probe.unsent.clear();
    probe.state = State::kEnded;
    probe.answer_by = TimePoint::max();
  }
  const auto done = [this] {
    return std::ranges::all_of(probes_,
                               [](const HostProbe& probe) { return probe.started.pid == 0; });
  };
  pump(done, now() + kEndTime);
  for (const HostProbe& probe : probes_) {
    if (probe.started.pid == 0) continue;
    ::kill(-probe.started.pid, SIGKILL);
    ::waitpid(probe.started.pid, nullptr, 0);
  }
}

// Replaces the last line of this kind; an empty text removes it.
void Examiner::show(const std::string& progress) {
  if (!plan_.shows_progress || progress == shown_) return;
  shown_ = progress;
  std::fprintf(stderr, "\r\x1b[K%s", progress.c_str());
}

}  // namespace

Result<Survey> examine_hosts(const ExaminationPlan& plan) {
  const OriginalState state = save_and_adjust_state();
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGPIPE);  // a probe may end while we write to it
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  FARANDOLE_TRY_ASSIGN(JobSecret secret, JobSecret::generate());
  return Examiner(plan, state, std::move(secret)).run();
}

}  // namespace farandole
