// Job sheet: a table of the job's workers in the launcher's memory, for other processes of the same
// user. For each worker, the table has the worker's state and a number. This is the number of the
// descriptor by which the launcher has the worker's flight record. Only a process that may open the
// launcher's descriptors in /proc can read the table.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/process_end.h"
#include "farandole/status.h"
#include "transport/shm/segment.h"

namespace farandole {

// The name of the launcher's process that owns the descriptors. The kernel keeps only 15 letters of
// a name.
inline constexpr const char* kAgentName = "farandole-agent";

// The names of the memory segments as /proc shows them.
inline constexpr const char* kJobSheetName = "farandole-job";
inline constexpr const char* kFlightRecordName = "farandole-flight-record";

struct SheetWorker {
  pid_t pid = 0;  // 0 if the worker has not started yet
  int record_descriptor = -1;
  int stop_signal = 0;  // the signal that stopped the worker; 0 if the worker runs
  std::optional<ProcessEnd> end;
};

struct SheetJob {
  pid_t foreground = 0;  // the process that the user started
  pid_t agent = 0;       // the process that owns the descriptors
  TimePoint started{};
  std::string host;
  std::string command;               // in shell syntax; a long command is cut
  int size = 0;                      // the number of ranks on all hosts
  int first_rank = 0;                // the rank of the first worker; 0 only on the first host
  std::vector<SheetWorker> workers;  // the workers of this host, by local rank
};

// The writing side. Only one thread may use it.
class JobSheet {
 public:
  // `job` has no workers yet; worker_started() adds them. Errors: kStop.
  static Result<std::unique_ptr<JobSheet>> create(const SheetJob& job, int workers);

  void worker_started(int local_rank, pid_t pid, int record_descriptor);
  void worker_stopped(int local_rank, int signal);
  void worker_continued(int local_rank);
  void worker_ended(int local_rank, const ProcessEnd& end);
  std::span<const std::byte> memory() const { return {segment_->data(), segment_->size()}; }

 private:
  explicit JobSheet(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}

  std::shared_ptr<Segment> segment_;
};

// The reading side. Returns nothing if the memory is not a job sheet of this version.
std::optional<SheetJob> read_job_sheet(const std::byte* memory, std::size_t bytes);

}  // namespace farandole
