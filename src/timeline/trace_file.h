// TraceFile: the file that all ranks of a job write, each with a descriptor of its own. Locks on
// two of its bytes keep order, and the kernel releases them if a process dies:
// - Every rank that writes holds a shared lock on byte 0. A rank that gets an exclusive lock on it
//   is the first one, and begins the file.
// - A rank holds an exclusive lock on byte 1 while it reads the end of the file and writes there.
// If a rank has died while writing, or the disk was full, the rest of a broken line is cut off.
// Each write ends with the closing bracket and overwrites the previous one, so the file is complete
// between two writes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "timeline/trace_text.h"

namespace farandole {

// One thread. All calls may block while another rank writes.
class TraceFile {
 public:
  // Begins the file with `head` and replaces what is there, or continues a file of the same job.
  // Errors, with path and reason: kFixCall (no such folder, no permission, not a regular file,
  // another job writes there), kStop (a limit of the system, no locks on this file system).
  static Result<TraceFile> open(const std::string& path, const TraceHead& head);

  // The head that the file has.
  const TraceHead& head() const { return head_; }
  std::size_t bytes_at_open() const { return bytes_at_open_; }

  // Appends whole lines, or nothing if there is an error. Errors: kStop, as above.
  Status append(std::string_view lines);
  // Ends writing: no more lines will come.
  void close();
  // For the child of a fork: closes the file, so that the parent's locks do not depend on the
  // child. Takes no lock.
  void abandon_after_fork() { file_.reset(); }

 private:
  TraceFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  Status join(const TraceHead& head);
  // These functions return an errno, 0 if there was no error.
  int repair();
  int cut_to_line(std::size_t bytes_max);
  int write_at_end(std::string_view text);
  Status failed(int error) const;

  std::string path_;
  Descriptor file_;
  TraceHead head_;
  std::size_t bytes_at_open_ = 0;
  std::size_t bytes_ = 0;  // the length of all lines without the end mark; repair() sets it
};

}  // namespace farandole
