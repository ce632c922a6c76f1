#include "stalls/stall_warnings.h"

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <new>
#include <span>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/system_files.h"
#include "base/thread_setup.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"
#include "diagnosis/worker_report.h"
#include "rendezvous/keys.h"
#include "timeline/flight_record.h"

namespace farandole {
namespace {

const std::function<bool()> kNeverInterrupted;

// Whether a signal has stopped the process. If the process is not in this PID namespace, its state
// is unknown, and the result is false.
bool is_stopped(const Descriptor& pidfd) {
  const auto info = file_text(format_text("/proc/self/fdinfo/{}", pidfd.get()));
  const auto pid = number_after(info.value_or(""), "Pid");
  if (!pid || *pid <= 0) return false;
  const std::string stat_line = file_text(format_text("/proc/{}/stat", *pid)).value_or("");
  const std::size_t command_end = stat_line.rfind(')');
  return command_end != std::string::npos && command_end + 2 < stat_line.size() &&
         stat_line[command_end + 2] == 'T';
}

}  // namespace

StallWarnings::StallWarnings(const Formation& formation, Store* reports, Duration warn_after,
                             ShowLine show_line)
    : formation_(formation),
      reports_(reports),
      watch_(warn_after),
      report_age_max_(2 * warn_after),
      show_line_(std::move(show_line)) {}

StallWarnings::~StallWarnings() { stop(); }

Status StallWarnings::start() {
  const TimePoint now = std::chrono::steady_clock::now();
  remote_workers_.assign(formation_.ranks.size(),
                         {.report_number = 0, .received_at = now, .worker = {}});
  try {
    thread_ = std::thread(&StallWarnings::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(format_text(
        "cannot start the thread that warns about stalls ({}); raise `ulimit -u` or the pids limit "
        "of the container, or turn the warnings off with FARANDOLE_STALL_WARNING=0",
        error.what()));
  }
  return {};
}

void StallWarnings::stop() {
  if (!thread_.joinable()) return;
  *stop_requested_.lock() = true;
  stop_requested_.notify_all();
  thread_.join();
}

void StallWarnings::run() {
  set_up_own_thread("farandole-stall");
  for (;;) {
    const TimePoint next_check = std::chrono::steady_clock::now() + watch_.interval();
    if (stop_requested_.lock().wait_until(next_check, [](bool requested) { return requested; }))
      break;
    try {
      check(std::chrono::steady_clock::now());
    } catch (const std::bad_alloc&) {
      continue;  // perhaps there is enough memory at the next check
    }
  }
  if (reports_ != nullptr && !detects_stalls() && !store_has_failed_)
    (void)reports_->remove_all(report_keys(true));
}

void StallWarnings::check(TimePoint now) {
  if (!detects_stalls()) return publish(now);
  if (reports_ == nullptr || read_reports(now)) return report_stalls(now);
  warn_about_missing_reports(now);
}

std::vector<WatchedWorker> StallWarnings::local_workers() const {
  std::vector<WatchedWorker> workers;
  for (const Peer& peer : formation_.peers) {
    const RankInfo& info = formation_.ranks[static_cast<std::size_t>(peer.rank)];
    const bool has_gone = has_ended(peer.pidfd);
    workers.push_back({.host = info.host_name,
                       .pid = static_cast<pid_t>(peer.pid),
                       .report = read_flight_record(peer.flight_record->data()),
                       .end = has_gone ? "its process is gone" : "",
                       .stop_signal = !has_gone && is_stopped(peer.pidfd) ? SIGSTOP : 0});
  }
  return workers;
}

// If the Store fails, the job ends anyway, so errors of the Store are not reported here. If the
// process that serves the Store is stopped, the first replace() waits until stop() is called.
void StallWarnings::publish(TimePoint now) {
  const std::vector<std::string> keys = report_keys(true);
  const std::function<bool()> interrupted = [this] { return *stop_requested_.lock(); };
  ++reports_published_;
  std::size_t next_key = 0;
  for (const WatchedWorker& worker : local_workers()) {
    ByteWriter writer;
    writer.put(reports_published_);
    const Bytes report = encode_worker(worker, now);
    writer.put_text({reinterpret_cast<const char*>(report.data()), report.size()});
    const WaitLimit limit{TimePoint::max(), interrupted};
    store_has_failed_ = !reports_->replace(keys[next_key++], writer.take(), limit).ok();
    if (store_has_failed_) return;
  }
}

bool StallWarnings::read_reports(TimePoint now) {
  const std::vector<std::string> keys = report_keys(false);
  const std::string wanted_key = keys::reports_wanted(formation_.epoch);
  (void)reports_->set_if_new(wanted_key, {});  // if this key exists, wait_for_all() never waits
  const auto values = reports_->wait_for_all(keys, wanted_key, {TimePoint{}, kNeverInterrupted});
  bool is_complete = true;
  std::size_t next_key = 0;
  for (const RankInfo& rank : formation_.ranks) {
    if (rank.host == formation_.host_of(0)) continue;
    RemoteWorker& remote_worker =
        remote_workers_[static_cast<std::size_t>(&rank - formation_.ranks.data())];
    const std::size_t key_index = next_key++;
    if (values.ok() && (*values)[key_index]) {
      ByteReader reader(*(*values)[key_index]);
      const auto number = reader.get<std::uint64_t>();
      const std::string report = reader.get_text();
      auto worker = decode_worker(std::as_bytes(std::span(report)), now);
      if (number != remote_worker.report_number && worker)
        remote_worker = {number, now, std::move(worker)};
    }
    is_complete =
        is_complete && remote_worker.worker && now - remote_worker.received_at < report_age_max_;
  }
  return is_complete;
}

void StallWarnings::warn_about_missing_reports(TimePoint now) {
  std::vector<int> silent_ranks;
  for (std::size_t rank = 0; rank < remote_workers_.size(); ++rank) {
    const bool is_here = formation_.ranks[rank].host == formation_.host_of(0);
    if (!is_here && now - remote_workers_[rank].received_at >= report_age_max_)
      silent_ranks.push_back(static_cast<int>(rank));
  }
  if (silent_ranks.empty() || std::exchange(missing_reports_shown_, true)) return;
  const std::string& host =
      formation_.ranks[static_cast<std::size_t>(silent_ranks.front())].host_name;
  show_line_(format_text(
      "{} ({}) {} not reported for {}, so it is unknown which ranks wait for which; is the "
      "host overloaded, or the process of its lowest rank stopped?",
      ranks_text(silent_ranks), escape_controls(host), silent_ranks.size() == 1 ? "has" : "have",
      describe(report_age_max_)));
}

void StallWarnings::report_stalls(TimePoint now) {
  missing_reports_shown_ = false;
  std::vector<WatchedWorker> workers = local_workers();
  if (reports_ != nullptr) {
    std::vector<WatchedWorker> all_workers(remote_workers_.size());
    for (std::size_t rank = 0; rank < all_workers.size(); ++rank)
      if (remote_workers_[rank].worker) all_workers[rank] = *remote_workers_[rank].worker;
    for (std::size_t i = 0; i < workers.size(); ++i)
      all_workers[static_cast<std::size_t>(formation_.peers[i].rank)] = std::move(workers[i]);
    workers = std::move(all_workers);
  }
  const auto report = watch_.tick(workers, now);
  for (const std::string& line : report.lines) show_line_(line);
  for (const int rank : report.unexplained_ranks)
    show_stack_command(rank, workers[static_cast<std::size_t>(rank)]);
}

// On many systems, a process may inspect only its own child processes. So this thread does not
// start py-spy itself.
void StallWarnings::show_stack_command(int rank, const WatchedWorker& worker) const {
  show_line_(format_text("  to see where rank {} is, run `py-spy dump --pid {}` on {}", rank,
                         worker.pid, escape_controls(worker.host)));
}

std::vector<std::string> StallWarnings::report_keys(bool for_this_host) const {
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < formation_.ranks.size(); ++rank) {
    const bool is_here =
        formation_.ranks[rank].host == formation_.host_of(formation_.topology.rank);
    if (is_here == for_this_host)
      keys.push_back(keys::report(formation_.epoch, static_cast<int>(rank)));
  }
  return keys;
}

}  // namespace farandole
