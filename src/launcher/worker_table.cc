#include "launcher/worker_table.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "base/cores.h"
#include "base/process_end.h"
#include "workers/core_binding.h"

namespace farandole {

void WorkerTable::set(int local_rank, StartedProcess process, std::shared_ptr<Segment> record) {
  workers_.at(static_cast<std::size_t>(local_rank)) = {std::move(process), std::move(record)};
}

std::vector<pid_t> WorkerTable::pids() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.process.pid);
  return pids;
}

FlightReport WorkerTable::flight_report(int local_rank) const {
  const Worker& worker = at(local_rank);
  return worker.record ? read_flight_record(worker.record->data()) : FlightReport();
}

void WorkerTable::send_signal(int local_rank, int number) const {
  if (pid(local_rank) > 0) ::kill(-pid(local_rank), number);
}

std::vector<WatchedWorker> WorkerTable::watched_workers(const std::string& host,
                                                        const Supervision& supervision) const {
  std::vector<WatchedWorker> watched;
  for (int local_rank = 0; local_rank < count(); ++local_rank) {
    const auto end = supervision.end_of(local_rank);
    const bool has_started = at(local_rank).record != nullptr;
    watched.push_back({.host = host,
                       .pid = pid(local_rank),
                       .report = flight_report(local_rank),
                       .end = end           ? describe(*end)
                              : has_started ? ""
                                            : "has not started",
                       .stop_signal = supervision.stop_signal(local_rank),
                       .cores = end ? "" : bound_hardware_threads(pid(local_rank), ::getpid())});
  }
  return watched;
}

}  // namespace farandole
