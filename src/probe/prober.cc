#include "probe/prober.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/cores.h"
#include "base/descriptor.h"
#include "base/format.h"
#include "base/knobs.h"
#include "base/system_files.h"
#include "base/try.h"
#include "doctor/doctor_check.h"
#include "doctor/doctor_frameworks.h"
#include "network/tcp/host_name.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/job_secret.h"
#include "network/tcp/listen_knobs.h"
#include "network/tcp/tcp_listener.h"
#include "output/line_splitter.h"
#include "probe/address_trial.h"
#include "probe/exchange.h"
#include "probe/probe_lines.h"
#include "remote/passed_environment.h"
#include "remote/remote_process.h"

namespace farandole {
namespace {

constexpr auto kSecretTimeMax = std::chrono::seconds(60);
constexpr std::size_t kTrialsAtOnce = 8;
constexpr std::size_t kHandshakesMax = 1024;  // many attempts may come at the same time

TimePoint time_now() { return std::chrono::steady_clock::now(); }

// Returns false if nobody reads our output any more.
bool write_line(const std::string& line) {
  const std::string bytes = line + "\n";
  std::size_t bytes_written = 0;
  while (bytes_written < bytes.size()) {
    const ssize_t count =
        ::write(STDOUT_FILENO, bytes.data() + bytes_written, bytes.size() - bytes_written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes_written += static_cast<std::size_t>(count);
  }
  return true;
}

// Looks the names up in a process of its own, because a look-up can take many seconds. Returns the
// descriptor from which the lines of that process can be read.
Descriptor start_lookups(const std::vector<std::string>& names) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  if (::fork() != 0) return ours;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(theirs.get(), STDOUT_FILENO);
  for (const std::string& name : names) {
    const auto lookup = look_up_host(name, 0);
    if (!write_line(encode(ProbeAnswer(NameLookup{name, lookup.status().message()})))) break;
  }
  ::_exit(0);
}

// Python and the frameworks in it, as `farandole doctor` finds them.
std::vector<Package> find_packages() {
  const Check check = python_check();
  const std::vector<Finding> findings = findings_of(check);
  std::vector<Package> packages;
  for (std::size_t i = 0; i < findings.size(); ++i) {
    // If Python does not work or does not answer, it is unknown what is installed.
    const bool is_known =
        findings[i].health != Health::kDoesNotWork || !findings[i].version.empty();
    if (is_known) packages.push_back({check.names.at(i), findings[i].version});
  }
  return packages;
}

class Prober {
 public:
  Prober(const std::string& version, std::unique_ptr<TlsContext> context)
      : version_(version), context_(std::move(context)) {}

  int run();

 private:
  struct Answerer {
    std::unique_ptr<Connection> connection;
    AnsweringEnd end;
  };

  TimePoint next_deadline() const;
  bool has_work() const;
  bool can_start_trial() const;
  std::vector<pollfd> descriptors() const;
  bool read_orders();
  bool execute(const ProbeOrder& order);
  bool begin(const BeginOrder& order);
  Status listen(HostFacts& facts);
  void forward_lookups();
  void accept_connections();
  void advance_answerers();
  void start_trials();
  bool advance_trials();

  const std::string& version_;
  std::unique_ptr<TlsContext> context_;
  std::uint32_t number_ = 0;
  LineSplitter input_{kProbeLineBytesMax};
  Descriptor lookups_;  // the output of the process that looks up names
  LineSplitter lookup_lines_;
  std::unique_ptr<TcpListener> listener_;
  std::list<Answerer> answerers_;
  std::deque<Target> targets_;
  bool measures_ = false;
  std::list<AddressTrial> trials_;
};

// Returns at the end of the standard input, so the wait for the next order needs no time limit.
int Prober::run() {
  for (;;) {
    auto entries = descriptors();
    const auto until = has_work() ? time_now() : next_deadline();
    const auto time_left = std::chrono::ceil<std::chrono::milliseconds>(until - time_now());
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::clamp<std::int64_t>(time_left.count(), 0, 1000)));
    if (entries.front().revents != 0 && !read_orders()) return 0;
    forward_lookups();
    accept_connections();
    advance_answerers();
    start_trials();
    if (!advance_trials()) return 0;
  }
}

std::vector<pollfd> Prober::descriptors() const {
  const auto events = [](bool wants_to_send) {
    return static_cast<short>(wants_to_send ? POLLIN | POLLOUT : POLLIN);
  };
  std::vector<pollfd> entries{{STDIN_FILENO, POLLIN, 0}, {lookups_.get(), POLLIN, 0}};
  if (listener_) entries.push_back({listener_->descriptor(), POLLIN, 0});
  for (const Answerer& answerer : answerers_)
    entries.push_back({answerer.connection->descriptor(), events(answerer.end.wants_to_send()), 0});
  for (const AddressTrial& trial : trials_)
    entries.push_back({trial.descriptor(), events(trial.wants_to_send()), 0});
  return entries;
}

bool Prober::can_start_trial() const {
  return !targets_.empty() && trials_.size() < (measures_ ? 1 : kTrialsAtOnce);
}

// Whether there is work although no descriptor is ready.
bool Prober::has_work() const {
  return can_start_trial() || std::ranges::any_of(trials_, &AddressTrial::has_received) ||
         std::ranges::any_of(answerers_, [](const Answerer& answerer) {
           return answerer.connection->has_received();
         });
}

TimePoint Prober::next_deadline() const {
  TimePoint earliest = TimePoint::max();
  if (listener_) earliest = std::min(earliest, listener_->next_deadline());
  for (const Answerer& answerer : answerers_)
    earliest = std::min(earliest, answerer.end.deadline());
  for (const AddressTrial& trial : trials_) earliest = std::min(earliest, trial.deadline());
  return earliest;
}

// Returns false at the end of the input, or if nobody reads our output any more.
bool Prober::read_orders() {
  std::array<char, 64 * 1024> bytes{};
  const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  for (const OutputPiece& piece :
       input_.push(std::string_view(bytes.data(), static_cast<std::size_t>(count)))) {
    const auto order = decode_probe_order(piece.text);
    if (!piece.finished || !order) continue;
    if (!execute(*order)) return false;
  }
  return true;
}

bool Prober::execute(const ProbeOrder& order) {
  if (const auto* begin_order = std::get_if<BeginOrder>(&order)) return begin(*begin_order);
  if (const auto* connect_order = std::get_if<ConnectOrder>(&order)) {
    targets_.insert(targets_.end(), connect_order->targets.begin(), connect_order->targets.end());
    measures_ = connect_order->measures;
    return true;
  }
  const auto wall_time = std::chrono::system_clock::now().time_since_epoch();
  return write_line(encode(ProbeAnswer(
      ClockAnswer{std::chrono::duration_cast<std::chrono::nanoseconds>(wall_time).count()})));
}

bool Prober::begin(const BeginOrder& order) {
  number_ = order.number;
  set_environment(order.environment);
  lookups_ = start_lookups(order.hosts);
  HostFacts facts{.version = version_,
                  .kernel = {},
                  .packages = find_packages(),
                  .cores = usable_cores(),
                  .memory_bytes = usable_memory(),
                  .addresses = {},
                  .listen_error = {}};
  utsname kernel{};
  if (::uname(&kernel) == 0) facts.kernel = kernel.release;
  if (const Status status = listen(facts); !status.ok()) facts.listen_error = status.message();
  return write_line(encode(ProbeAnswer(std::move(facts))));
}

// Listens at the same addresses as a rank of a job would.
Status Prober::listen(HostFacts& facts) {
  Knobs knobs;
  FARANDOLE_TRY(read_knobs(knobs, [](const char* name) { return std::getenv(name); }));
  FARANDOLE_TRY_ASSIGN(const PortRange ports, parse_ports(knobs.ports));
  FARANDOLE_TRY_ASSIGN(const auto host_addresses, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(
      auto addresses, choose_addresses(host_addresses, parse_interfaces(knobs.network_interfaces)));
  const Link link = link_between_probes(0, number_);
  FARANDOLE_TRY_ASSIGN(
      listener_,
      TcpListener::open(
          *context_, {.addresses = std::move(addresses),
                      .port_first = ports.first,
                      .port_last = ports.last,
                      .acceptance = {.job = link.job, .epoch = link.epoch, .self = link.listener},
                      .handshakes_max = kHandshakesMax}));
  for (const SocketAddress& address : listener_->addresses()) {
    const auto listed =
        std::ranges::find(host_addresses, address.with_port(0), &InterfaceAddress::address);
    facts.addresses.push_back(
        {listed != host_addresses.end() ? listed->interface : "", address.text()});
  }
  return {};
}

void Prober::forward_lookups() {
  pollfd entry{lookups_.get(), POLLIN, 0};
  if (!lookups_.valid() || ::poll(&entry, 1, 0) <= 0) return;
  std::array<char, 4096> bytes{};
  const ssize_t count = ::read(lookups_.get(), bytes.data(), bytes.size());
  if (count <= 0) return lookups_.reset();
  for (const OutputPiece& piece :
       lookup_lines_.push(std::string_view(bytes.data(), static_cast<std::size_t>(count))))
    if (piece.finished) write_line(piece.text);
}

void Prober::accept_connections() {
  while (listener_) {
    auto accepted = listener_->try_accept(time_now());
    if (!accepted.ok() || *accepted == nullptr) return;
    Connection& connection = **accepted;
    answerers_.push_back({std::move(accepted).value(), AnsweringEnd(connection)});
  }
}

void Prober::advance_answerers() {
  answerers_.remove_if([](Answerer& answerer) { return !answerer.end.advance(time_now()).ok(); });
}

void Prober::start_trials() {
  while (can_start_trial()) {
    const Target target = std::move(targets_.front());
    targets_.pop_front();
    const auto address = SocketAddress::parse(target.address);
    if (address.ok()) {
      trials_.emplace_back(*context_, link_between_probes(number_, target.host), *address,
                           TrialOptions{.measures = measures_}, time_now());
    } else {
      write_line(encode(ProbeAnswer(Attempt{.to = target.host,
                                            .address = target.address,
                                            .failure = ConnectFailure::kOther,
                                            .error = address.status().message()})));
    }
  }
}

// Returns false if nobody reads our output any more.
bool Prober::advance_trials() {
  for (auto trial = trials_.begin(); trial != trials_.end();) {
    const auto ready_trial = trial++;
    const auto attempt = ready_trial->advance(time_now());
    if (!attempt) continue;
    trials_.erase(ready_trial);
    if (!write_line(encode(ProbeAnswer(*attempt)))) return false;
  }
  return true;
}

int fail(const Status& why) {
  std::fprintf(stderr, "farandole probe: %s\n", why.message().c_str());
  return 1;
}

}  // namespace

int run_probe(const std::string& version) {
  ::signal(SIGPIPE, SIG_IGN);
  if (!write_greeting(std::string(kProbeGreeting) + version)) return 1;
  auto secret = JobSecret::read_descriptor(STDIN_FILENO, time_now() + kSecretTimeMax);
  if (!secret.ok()) return fail(secret.status());
  auto context = TlsContext::make(std::move(secret).value());
  if (!context.ok()) return fail(context.status());
  return Prober(version, *std::move(context)).run();
}

}  // namespace farandole
