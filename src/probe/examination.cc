#include "probe/examination.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/poller.h"
#include "base/time_point.h"
#include "base/try.h"
#include "launcher/signal_setup.h"
#include "network/tcp/job_secret.h"
#include "output/line_splitter.h"
#include "output/worker_stream.h"
#include "probe/pairing.h"
#include "probe/probe_lines.h"
#include "remote/remote_process.h"
#include "workers/worker_process.h"

namespace farandole {
namespace {

constexpr auto kFactsTimeMax = std::chrono::seconds(20);
constexpr auto kClockTimeMax = std::chrono::seconds(10);
// One attempt of a probe, including the measurement, takes at most this time.
constexpr auto kAttemptTimeMax = std::chrono::seconds(11);
constexpr std::size_t kAttemptsAtOnce = 8;
constexpr auto kEndTimeMax = std::chrono::seconds(5);
constexpr int kClockQuestions = 8;
// With more hosts than this, only one address of each pair of hosts is measured.
constexpr std::size_t kAllAddressesHostsMax = 8;

TimePoint now() { return std::chrono::steady_clock::now(); }

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The descriptor that our poller reports. A tag has this value in its high half, and the number of
// the host in its low half.
enum class Source : std::uint64_t { kOutput, kError, kEnd, kInput };
constexpr std::uint64_t tag(Source source, std::size_t host) {
  return static_cast<std::uint64_t>(source) << 32U | host;
}

// One of the two streams that we read from a probe.
struct Stream {
  Descriptor descriptor{};
  LineSplitter splitter{kProbeLineBytesMax};
};

struct HostProbe {
  enum class State { kNotStarted, kConnecting, kGreeted, kReady, kEnded };

  HostProbe(const HostEntry& host, Poller& poller, std::size_t index)
      : remote(host, poller, {tag(Source::kEnd, index), tag(Source::kInput, index)}),
        number(index) {
    report.name = host.name;
  }

  RemoteProcess remote;
  std::size_t number;  // the index in the list of hosts
  State state = State::kNotStarted;
  TimePoint answer_deadline = TimePoint::max();
  std::array<Stream, 2> streams{};
  double clock_asked_at = 0;
  std::size_t missing_answers = 0;
  HostReport report{};
};

using State = HostProbe::State;

class Examiner {
 public:
  Examiner(const ExaminationPlan& plan, const OriginalProcessState& state, JobSecret secret,
           Poller poller)
      : plan_(plan),
        original_state_(state),
        secret_(std::move(secret)),
        poller_(std::move(poller)) {
    for (const HostEntry& host : plan.hosts) probes_.emplace_back(host, poller_, probes_.size());
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

  void serve_until(const std::function<bool()>& is_done, TimePoint deadline);
  void serve(std::uint64_t ready_tag);
  void read_from(HostProbe& probe, std::size_t stream);
  void handle_line(HostProbe& probe, std::size_t stream, const std::string& line);
  void handle_answer(HostProbe& probe, const ProbeAnswer& answer);
  bool is_possible(const HostProbe& probe, const Attempt& attempt) const;
  void handle_greeting(HostProbe& probe);
  void ask(HostProbe& probe, const ProbeOrder& order, std::size_t answers);
  void wait_for_answers(Duration time);
  void handle_process_end(HostProbe& probe);
  void fail(HostProbe& probe, const std::string& why, const std::string& advice);
  void give_up_silent_hosts();
  void end_all();
  std::ptrdiff_t count(State state) const {
    return std::ranges::count(probes_, state, &HostProbe::state);
  }
  void show_progress(const std::string& progress);

  const ExaminationPlan& plan_;
  const OriginalProcessState& original_state_;
  JobSecret secret_;
  Poller poller_;
  std::deque<HostProbe> probes_;
  std::string shown_progress_;  // the progress line that the terminal shows now
};

Survey Examiner::run() {
  start_all();
  compare_clocks();
  try_all_addresses();
  measure_all();
  show_progress("");
  end_all();
  Survey survey{.hosts = {}, .ports = plan_.ports};
  for (HostProbe& probe : probes_) survey.hosts.push_back(std::move(probe.report));
  return survey;
}

void Examiner::start_all() {
  const auto is_done = [this] {
    for (HostProbe& probe : probes_) {
      if (probe.state != State::kNotStarted || count(State::kConnecting) >= kSshConnectionsMax)
        continue;
      if (const Status status = start(probe); !status.ok()) fail(probe, status.message(), "");
    }
    show_progress(
        format_text("{} of {} hosts have answered", count(State::kReady), probes_.size()));
    return count(State::kReady) + count(State::kEnded) ==
           static_cast<std::ptrdiff_t>(probes_.size());
  };
  serve_until(is_done, TimePoint::max());
}

Status Examiner::start(HostProbe& probe) {
  const RemoteProcess::Program program{
      .words = {plan_.program, "probe"}, .greeting = std::string(kProbeGreeting), .ssh = plan_.ssh};
  FARANDOLE_TRY_ASSIGN(WorkerStream output, WorkerStream::make_pipe());
  FARANDOLE_TRY_ASSIGN(WorkerStream error, WorkerStream::make_pipe());
  FARANDOLE_TRY(
      probe.remote.start(program, output.theirs.get(), error.theirs.get(), original_state_));
  probe.state = State::kConnecting;
  probe.answer_deadline = now() + plan_.start_timeout;
  probe.streams[0].descriptor = std::move(output.ours);
  probe.streams[1].descriptor = std::move(error.ours);
  for (const Source source : {Source::kOutput, Source::kError}) {
    const Stream& stream = probe.streams.at(static_cast<std::size_t>(source));
    if (!poller_.add(stream.descriptor.get(), Poller::Interest::kReading,
                     tag(source, probe.number)))
      return Status::stop(
          "its output cannot be watched; the limit is in /proc/sys/fs/epoll/max_user_watches");
  }
  return {};
}

// The fastest answer is the most exact one (Cristian's algorithm, as in clock_offset.h).
void Examiner::compare_clocks() {
  for (int question = 0; question < kClockQuestions; ++question) {
    for (HostProbe& probe : probes_) {
      if (probe.state != State::kReady) continue;
      probe.clock_asked_at = wall_seconds();
      ask(probe, ClockOrder(), 1);
    }
    wait_for_answers(kClockTimeMax);
  }
}

// The targets of a host begin with the next host in the list, so that the hosts do not all try the
// same host at the same time.
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
  std::size_t targets_max = 0;
  for (std::size_t from = 0; from < probes_.size(); ++from) {
    if (probes_[from].state != State::kReady) continue;
    const auto targets = targets_of(from);
    targets_max = std::max(targets_max, targets.size());
    if (!targets.empty()) ask(probes_[from], ConnectOrder{.targets = targets}, targets.size());
  }
  show_progress("each host tries the addresses of the others");
  wait_for_answers(kAttemptTimeMax * (1 + targets_max / kAttemptsAtOnce));
}

// Measures the two directions of a pair one after the other, because both directions use the
// processors of both hosts.
void Examiner::measure_all() {
  std::size_t addresses_max = 1;  // the most addresses of one host
  for (const HostProbe& probe : probes_)
    if (probe.report.facts)
      addresses_max = std::max(addresses_max, probe.report.facts->addresses.size());
  const auto rounds = rounds_of_pairs(probes_.size());
  for (std::size_t round = 0; round < rounds.size(); ++round)
    for (const bool is_back : {false, true}) {
      show_progress(format_text("measuring: round {} of {}", 2 * round + (is_back ? 2 : 1),
                                2 * rounds.size()));
      for (const auto& [host_1, host_2] : rounds[round])
        is_back ? measure(host_2, host_1) : measure(host_1, host_2);
      wait_for_answers(kAttemptTimeMax * addresses_max);
    }
}

void Examiner::measure(std::size_t from, std::size_t to) {
  if (probes_[from].state != State::kReady || probes_[to].state != State::kReady) return;
  ConnectOrder order{.targets = {}, .measures = true};
  for (const Attempt& attempt : probes_[from].report.attempts)
    if (attempt.to == to && attempt.failure == ConnectFailure::kNone)
      order.targets.push_back({attempt.to, attempt.address});
  if (order.targets.empty()) return;
  if (probes_.size() > kAllAddressesHostsMax) order.targets.resize(1);
  ask(probes_[from], order, order.targets.size());
}

void Examiner::ask(HostProbe& probe, const ProbeOrder& order, std::size_t answers) {
  probe.missing_answers += answers;
  if (const Status status = probe.remote.send(encode(order) + "\n"); !status.ok())
    fail(probe, status.message(), "");
}

void Examiner::wait_for_answers(Duration time) {
  for (HostProbe& probe : probes_)
    if (probe.missing_answers > 0) probe.answer_deadline = now() + time;
  const auto is_done = [this] {
    return std::ranges::all_of(probes_, [](const HostProbe& probe) {
      return probe.state != State::kReady || probe.missing_answers == 0;
    });
  };
  serve_until(is_done, TimePoint::max());
  for (HostProbe& probe : probes_) probe.answer_deadline = TimePoint::max();
}

// Reads and writes until is_done() returns true, or until the deadline.
void Examiner::serve_until(const std::function<bool()>& is_done, TimePoint deadline) {
  while (!is_done() && now() < deadline) {
    TimePoint until = std::min(deadline, now() + std::chrono::seconds(1));
    for (const HostProbe& probe : probes_) until = std::min(until, probe.answer_deadline);
    for (const std::uint64_t ready_tag : poller_.wait(until)) serve(ready_tag);
    give_up_silent_hosts();
  }
}

void Examiner::serve(std::uint64_t ready_tag) {
  HostProbe& probe = probes_[ready_tag & 0xFFFFFFFFU];
  switch (static_cast<Source>(ready_tag >> 32U)) {
    case Source::kOutput:
      return read_from(probe, 0);
    case Source::kError:
      return read_from(probe, 1);
    case Source::kEnd:
      return handle_process_end(probe);
    case Source::kInput:
      return probe.remote.input_writable();
  }
}

// Reads the output that has arrived. After the process has ended, this is the rest of its output.
void Examiner::read_from(HostProbe& probe, std::size_t stream) {
  Stream& source = probe.streams.at(stream);
  while (source.descriptor.valid()) {
    const StreamRead read = read_available(source.descriptor);
    for (const OutputPiece& piece : source.splitter.push(read.bytes))
      if (piece.finished) handle_line(probe, stream, piece.text);
    if (read.ended) {
      for (const OutputPiece& piece : source.splitter.finish())
        handle_line(probe, stream, piece.text);
      poller_.remove(source.descriptor.get());
      source.descriptor.reset();
    }
    if (read.bytes.empty()) return;
  }
}

void Examiner::handle_line(HostProbe& probe, std::size_t stream, const std::string& line) {
  switch (probe.remote.receive_line(stream, line)) {
    case RemoteProcess::LineKind::kBeforeGreeting:
      return;
    case RemoteProcess::LineKind::kGreeting:
      return stream == 0 ? handle_greeting(probe) : void();
    case RemoteProcess::LineKind::kOfProgram:
      break;
  }
  if (stream != 0) return probe.remote.keep_line(line);
  if (const auto answer = decode_probe_answer(line)) handle_answer(probe, *answer);
}

void Examiner::handle_greeting(HostProbe& probe) {
  if (probe.state != State::kConnecting) return;
  probe.state = State::kGreeted;
  probe.answer_deadline = now() + kFactsTimeMax;
  if (const Status status = probe.remote.send_secret(secret_); !status.ok())
    return fail(probe, status.message(), "");
  BeginOrder order{.hosts = {},
                   .number = static_cast<std::uint32_t>(probe.number),
                   .environment = probe.remote.variables()};
  for (const HostEntry& host : plan_.hosts) order.hosts.push_back(host.name);
  order.environment.insert(order.environment.end(), plan_.settings.begin(), plan_.settings.end());
  ask(probe, order, 1 + order.hosts.size());
}

void Examiner::handle_answer(HostProbe& probe, const ProbeAnswer& answer) {
  const bool is_late = probe.state == State::kReady && std::holds_alternative<NameLookup>(answer);
  if (probe.missing_answers > 0 && !is_late) --probe.missing_answers;
  HostReport& report = probe.report;
  if (const auto* facts = std::get_if<HostFacts>(&answer)) {
    report.facts = *facts;
  } else if (const auto* lookup = std::get_if<NameLookup>(&answer)) {
    report.lookups.push_back(*lookup);
  } else if (const auto* clock = std::get_if<ClockAnswer>(&answer)) {
    const double half_round_trip = (wall_seconds() - probe.clock_asked_at) / 2;
    const double offset = static_cast<double>(clock->wall_nanoseconds) / 1e9 -
                          (probe.clock_asked_at + half_round_trip);
    if (!report.clock || half_round_trip < report.clock->error_seconds)
      report.clock = {.offset_seconds = offset, .error_seconds = half_round_trip};
  } else if (const auto* attempt = std::get_if<Attempt>(&answer);
             attempt != nullptr && is_possible(probe, *attempt)) {
    const auto earlier_attempt = std::ranges::find_if(report.attempts, [&](const Attempt& other) {
      return other.to == attempt->to && other.address == attempt->address;
    });
    if (earlier_attempt == report.attempts.end())
      report.attempts.push_back(*attempt);
    else
      *earlier_attempt = *attempt;
  }
  if (probe.state != State::kGreeted || probe.missing_answers > 0) return;
  if (!report.facts)
    return fail(probe, "its probe has said nothing about the host",
                "install the same version of Farandole on all hosts");
  probe.state = State::kReady;
  probe.answer_deadline = TimePoint::max();
}

// A probe of another version may send attempts that are impossible.
bool Examiner::is_possible(const HostProbe& probe, const Attempt& attempt) const {
  return attempt.to < probes_.size() && &probes_[attempt.to] != &probe;
}

void Examiner::handle_process_end(HostProbe& probe) {
  if (!probe.remote.has_ended() || !probe.remote.reap()) return;
  for (const std::size_t stream : {0U, 1U}) read_from(probe, stream);
  if (probe.state == State::kEnded) return;
  const std::string why = probe.remote.why_ended();
  const bool is_older_version = why.find("there is no command `probe`") != std::string::npos;
  fail(probe, why,
       is_older_version ? "install the same version of Farandole on all hosts"
                        : probe.remote.advice());
}

void Examiner::fail(HostProbe& probe, const std::string& why, const std::string& advice) {
  probe.report.start_error = why;
  probe.report.start_advice = advice;
  probe.state = State::kEnded;
  probe.answer_deadline = TimePoint::max();
  probe.remote.close_input();
  probe.remote.signal(SIGTERM);
}

void Examiner::give_up_silent_hosts() {
  for (HostProbe& probe : probes_) {
    if (now() < probe.answer_deadline) continue;
    if (probe.state == State::kGreeted && probe.report.facts) {  // only lookups are missing
      probe.state = State::kReady;
      probe.missing_answers = 0;
      probe.answer_deadline = TimePoint::max();
      continue;
    }
    const std::string why =
        probe.state == State::kConnecting
            ? format_text("there is no answer after {} s (FARANDOLE_START_TIMEOUT)",
                          plan_.start_timeout.count())
            : std::string("its probe has stopped answering");
    fail(probe, probe.remote.why_silent(why), probe.remote.advice());
  }
}

// Closes the standard inputs, so that the probes end. ~RemoteProcess() kills the probes that do not
// end.
void Examiner::end_all() {
  for (HostProbe& probe : probes_) {
    probe.remote.close_input();
    probe.state = State::kEnded;
    probe.answer_deadline = TimePoint::max();
  }
  const auto is_done = [this] {
    return std::ranges::none_of(probes_,
                                [](const HostProbe& probe) { return probe.remote.is_running(); });
  };
  serve_until(is_done, now() + kEndTimeMax);
}

// Replaces the progress line on the terminal. An empty text removes the line.
void Examiner::show_progress(const std::string& progress) {
  if (!plan_.shows_progress || progress == shown_progress_) return;
  shown_progress_ = progress;
  std::fprintf(stderr, "\r\x1b[K%s", progress.c_str());
}

}  // namespace

Result<Survey> examine_hosts(const ExaminationPlan& plan) {
  const OriginalProcessState state = save_and_adjust_state();
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGPIPE);  // a probe may end while we write to it
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  FARANDOLE_TRY_ASSIGN(JobSecret secret, JobSecret::generate());
  FARANDOLE_TRY_ASSIGN(Poller poller, Poller::create());
  return Examiner(plan, state, std::move(secret), std::move(poller)).run();
}

}  // namespace farandole
