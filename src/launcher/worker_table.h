// WorkerTable: the processes of the workers of this node, and their flight records.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/job_snapshot.h"
#include "supervision/supervision.h"
#include "timeline/flight_record.h"
#include "transport/shm/segment.h"
#include "workers/worker_process.h"

namespace farandole {

// The functions name a worker by its local rank. A worker of an elastic job may not have started
// yet.
class WorkerTable {
 public:
  explicit WorkerTable(int workers) : workers_(static_cast<std::size_t>(workers)) {}

  // Call it when a worker has started, perhaps in place of one that has ended.
  void set(int local_rank, StartedProcess process, std::shared_ptr<Segment> record);

  int count() const { return static_cast<int>(workers_.size()); }
  pid_t pid(int local_rank) const { return at(local_rank).process.pid; }
  int pidfd(int local_rank) const { return at(local_rank).process.pidfd.get(); }
  std::vector<pid_t> pids() const;  // 0: the worker has not started
  FlightReport flight_report(int local_rank) const;
  // Sends the signal to the process group of a worker that has started.
  void send_signal(int local_rank, int number) const;
  // Returns what each worker of this node does now. `host` is the name of this host.
  std::vector<WatchedWorker> watched_workers(const std::string& host,
                                             const Supervision& supervision) const;

 private:
  struct Worker {
    StartedProcess process{};
    std::shared_ptr<Segment> record{};  // null: the worker has not started
  };
  const Worker& at(int local_rank) const {
    return workers_.at(static_cast<std::size_t>(local_rank));
  }

  std::vector<Worker> workers_;
};

}  // namespace farandole
