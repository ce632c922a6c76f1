#include "jobs/job_list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/cores.h"
#include "base/descriptor.h"
#include "jobs/job_sheet.h"
#include "jobs/worker_reports.h"
#include "transport/shm/segment.h"

namespace farandole {
namespace {

namespace files = std::filesystem;

std::optional<int> as_number(const std::string& name) {
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

// Returns the entries of a folder that are numbers. Entries that appear or disappear during the
// call may be missing.
std::vector<int> numeric_entries(const files::path& folder) {
  std::vector<int> numbers;
  std::error_code error;
  for (files::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (const auto number = as_number(entry->path().filename())) numbers.push_back(*number);
  return numbers;
}

files::path folder_of(pid_t pid) { return files::path("/proc") / std::to_string(pid); }

// Compares only the owner and the name of the process. Any program may have that name, so the
// caller checks the contents of the job sheet before it uses them.
bool may_be_an_agent(pid_t pid) {
  struct stat attributes{};
  if (::stat(folder_of(pid).c_str(), &attributes) != 0 || attributes.st_uid != ::geteuid())
    return false;
  std::ifstream file(folder_of(pid) / "comm");
  std::string name;
  return std::getline(file, name) && name == kAgentName;
}

// When we open this file, the kernel checks whether we may read the memory of the process.
std::unique_ptr<SegmentView> open_memory(pid_t pid, int number) {
  const auto path = folder_of(pid) / "fd" / std::to_string(number);
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  return descriptor.valid() ? SegmentView::attach(descriptor) : nullptr;
}

bool is_segment(pid_t pid, int number, std::string_view name) {
  std::error_code error;
  const auto target = files::read_symlink(folder_of(pid) / "fd" / std::to_string(number), error);
  return !error && target.native().starts_with(std::string("/memfd:").append(name).append(" "));
}

// Returns the agent's memory segment with this name, if it can be read.
std::unique_ptr<SegmentView> open_segment(pid_t agent, std::string_view name) {
  for (const int number : numeric_entries(folder_of(agent) / "fd"))
    if (is_segment(agent, number, name)) return open_memory(agent, number);
  return nullptr;
}

struct FoundSheet {
  bool exists = false;
  std::optional<SheetJob> job;  // empty if the sheet cannot be read
};

FoundSheet find_job_sheet(pid_t agent) {
  FoundSheet sheet;
  for (const int number : numeric_entries(folder_of(agent) / "fd")) {
    if (!is_segment(agent, number, kJobSheetName)) continue;
    sheet.exists = true;
    const auto view = open_memory(agent, number);
    if (view) sheet.job = read_job_sheet(view->data(), view->size());
    if (sheet.job) break;
  }
  return sheet;
}

FlightReport flight_report_of(pid_t agent, const SheetWorker& worker) {
  if (worker.pid == 0 || !is_segment(agent, worker.record_descriptor, kFlightRecordName)) return {};
  const auto view = open_memory(agent, worker.record_descriptor);
  if (!view || view->size() < FlightRecorder::bytes_needed()) return {};
  return read_flight_record(view->data());
}

// Adds the workers of the other nodes, which only node 0 knows. Adds all of them or none: if a rank
// were left out, every call would seem to wait for this rank.
void add_workers_of_other_nodes(const SheetJob& sheet, std::vector<WatchedWorker>& workers) {
  if (sheet.first_rank > 0 || static_cast<int>(workers.size()) == sheet.size) return;
  const auto reports = open_segment(sheet.agent, kWorkerReportsName);
  if (reports == nullptr) return;
  std::vector<WatchedWorker> all_workers = workers;
  while (static_cast<int>(all_workers.size()) < sheet.size) {
    auto worker = read_worker_report({reports->data(), reports->size()},
                                     static_cast<int>(all_workers.size()));
    if (!worker) return;
    all_workers.push_back(*std::move(worker));
  }
  workers = std::move(all_workers);
}

JobStatus read_job_status(const SheetJob& sheet) {
  std::vector<WatchedWorker> workers;
  for (const SheetWorker& worker : sheet.workers) {
    const bool is_alive = worker.pid != 0 && !worker.end;
    workers.push_back({.host = sheet.host,
                       .pid = worker.pid,
                       .report = flight_report_of(sheet.agent, worker),
                       .end = worker.end ? describe(*worker.end) : "",
                       .stop_signal = worker.stop_signal,
                       .cores = is_alive ? bound_hardware_threads(worker.pid, sheet.agent) : ""});
  }
  JobStatus job{.pid = sheet.foreground,
                .host = sheet.host,
                .command = sheet.command,
                .started = sheet.started,
                .read_at = std::chrono::steady_clock::now(),
                .size = sheet.size,
                .local_size = static_cast<int>(sheet.workers.size()),
                .first_rank = sheet.first_rank,
                .ranks = {}};
  add_workers_of_other_nodes(sheet, workers);
  const JobSnapshot job_snapshot(workers, job.read_at);
  for (int worker = 0; worker < job_snapshot.count(); ++worker) {
    RankStatus status = rank_status(job_snapshot, worker);
    for (int& awaited : status.waits_for) awaited += sheet.first_rank;
    job.ranks.push_back(std::move(status));
  }
  return job;
}

}  // namespace

JobList running_jobs() {
  JobList list;
  for (const pid_t pid : numeric_entries("/proc")) {
    if (!may_be_an_agent(pid)) continue;
    auto sheet = find_job_sheet(pid);
    if (!sheet.job && sheet.exists) list.unreadable_launchers.push_back(pid);
    // A process that the agent has just forked has the same descriptors but another pid.
    if (sheet.job && sheet.job->agent == pid) list.jobs.push_back(read_job_status(*sheet.job));
  }
  std::ranges::sort(list.jobs, {}, &JobStatus::pid);
  std::ranges::sort(list.unreadable_launchers);
  return list;
}

}  // namespace farandole
