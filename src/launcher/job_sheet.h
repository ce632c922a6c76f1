// Job sheet: what a launcher lets other processes of its user know about its job: its workers, how
// each of them is, and under which descriptor of the launcher its flight record lies. Memory
// without a name; who may open the launcher's descriptors can read it, and nobody else.
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

// Of the segments, as /proc shows them.
inline constexpr const char* kJobSheetName = "farandole-job";
inline constexpr const char* kFlightRecordName = "farandole-flight-record";

struct SheetWorker {
  pid_t pid = 0;  // 0: it is being started
  int record_descriptor = -1;
  int stopped_by = 0;  // a signal
  std::optional<ProcessEnd> end;
};

struct SheetJob {
  pid_t foreground = 0;  // the process that the user has started
  pid_t agent = 0;       // whose descriptors these are
  TimePoint started{};
  std::string host;
  std::string command;               // the first bytes of it, as a shell might have it
  std::vector<SheetWorker> workers;  // by rank
};

// The writing side. One thread.
class JobSheet {
 public:
  // `job` without the workers, which are added. Errors: kStop.
  static Result<std::unique_ptr<JobSheet>> create(const SheetJob& job, int workers);

  void worker_started(int rank, pid_t pid, int record_descriptor);
  void worker_stopped(int rank, int signal);  // 0: it goes on
  void worker_ended(int rank, const ProcessEnd& end);
  std::span<const std::byte> memory() const { return {segment_->data(), segment_->size()}; }

 private:
  explicit JobSheet(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}

  std::shared_ptr<Segment> segment_;
};

// The reading side, from another process. Nothing for memory that says something else, or was
// written by another version.
std::optional<SheetJob> read_job_sheet(const std::byte* memory, std::size_t bytes);

}  // namespace farandole
