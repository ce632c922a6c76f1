// TraceFile: the timeline file that all ranks of a job write, each through a descriptor of its own.
// Locks on two bytes of the file coordinate the ranks. If a process dies, the kernel releases its
// locks.
// - Every rank that writes holds a shared lock on byte 0. A rank that gets an exclusive lock on
//   byte 0 is the only rank that writes, so it may replace the contents of another job's file.
// - A rank holds an exclusive lock on byte 1 while it reads the end of the file and appends lines.
// If a rank died while it wrote, or the disk was full, the next write cuts off the incomplete line.
// Each write overwrites the closing bracket of the previous write and ends with a new closing
// bracket. So the file is valid JSON between two writes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "timeline/trace_text.h"

namespace farandole {

// Only one thread may use it. All calls may block while another rank writes, unless the file was
// opened by open_existing().
class TraceFile {
 public:
  // Opens the file. If it belongs to the same job, new lines are appended; otherwise its contents
  // are replaced by `head`. Errors, with path and reason: kFixCall (no such folder, no permission,
  // not a regular file, another job writes to it), kStop (a limit of the system, no locks on this
  // file system).
  static Result<TraceFile> open(const std::string& path, const TraceHead& head);
  // Opens the file of this job, which must exist, to append lines to it. Neither this call nor
  // append() waits for other writers. Errors: as open(), and kFixCall if the file is not that of
  // the job; kStop, also from append(), if another process is writing.
  static Result<TraceFile> open_existing(const std::string& path, const std::string& job);

  // The head of the file, which another rank may have written.
  const TraceHead& head() const { return head_; }
  std::size_t bytes_at_open() const { return bytes_at_open_; }
  // The length of all lines in the file at the end of our last call.
  std::size_t bytes() const { return bytes_; }

  // Appends whole lines. If there is an error, appends nothing. Errors: those of open().
  Status append(std::string_view lines);
  // Releases the locks and closes the file.
  void close();
  // Closes the file in the child of a fork, so that the child does not keep the parent's locks.
  // Takes no lock.
  void abandon_after_fork() { file_.reset(); }

 private:
  TraceFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  static Result<TraceFile> open_regular(const std::string& path, int flags);
  Status begin_or_continue(const TraceHead& head);
  Status continue_job(const std::string& job);
  Status begin_writing();
  // These functions return an errno value, or 0 if there was no error.
  int repair();
  int cut_to_line(std::size_t bytes_max);
  int write_at_end(std::string_view text);
  Status error_status(int error) const;

  std::string path_;
  Descriptor file_;
  TraceHead head_;
  std::size_t bytes_at_open_ = 0;
  std::size_t bytes_ = 0;       // the length of all lines without the end mark
  bool waits_for_lock_ = true;  // whether to wait while another process holds the lock
};

}  // namespace farandole
