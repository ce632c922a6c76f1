// WorkerReports: the last report of each worker on other nodes, in the memory of node 0's launcher,
// for `farandole status`. Only a process that may open the launcher's descriptors can read it, as
// with the job sheet.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/clock.h"
#include "diagnosis/job_snapshot.h"
#include "farandole/status.h"
#include "transport/shm/segment.h"

namespace farandole {

// The name of the memory segment as /proc shows it.
inline constexpr const char* kWorkerReportsName = "farandole-worker-reports";

// The writing side. Only one thread may use it.
class WorkerReports {
 public:
  // Memory for the workers of a job of `size` ranks. The kernel allocates the pages of a worker
  // with its first report. Errors: kStop.
  static Result<std::unique_ptr<WorkerReports>> create(int size);

  // `report` is a worker report (diagnosis/worker_report.h) that was received at `now`. A report
  // longer than kWorkerReportBytesMax is ignored.
  void store(int rank, std::span<const std::byte> report, TimePoint now);
  std::span<const std::byte> memory() const { return {segment_->data(), segment_->size()}; }

 private:
  WorkerReports(std::shared_ptr<Segment> segment, int size)
      : segment_(std::move(segment)), size_(size) {}

  std::shared_ptr<Segment> segment_;
  int size_;
};

// The reading side: returns the worker with this rank. Empty if there is no report of this worker,
// or if its report is being written at this moment.
std::optional<WatchedWorker> read_worker_report(std::span<const std::byte> memory, int rank);

}  // namespace farandole
