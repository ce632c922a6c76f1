// TraceFile: the file that all ranks of a job write into, each with a descriptor of its own. Locks
// on two of its bytes order that, and the kernel takes back those of the dead:
//  - byte 0 is held shared by everybody who writes. Who gets it alone comes first, and begins the
//    file.
//  - byte 1 is the turn, held alone while somebody looks at the end of the file and writes there.
//    What somebody who died in its turn, or a full disk, has left of a line is cut off.
// Each write ends with the closing bracket, in the place of the one before: so the file is whole
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

// One thread. All calls may block for as long as another rank writes.
class TraceFile {
 public:
  // Begins the file with `head`, in place of what is there, or goes on in one of the same job.
  // Errors, with path and reason: kFixCall (no such folder, no permission, no regular file, another
  // job writes there), kStop (the system's limits, no locks on this file system).
  static Result<TraceFile> open(const std::string& path, const TraceHead& head);

  // The one that the file has.
  const TraceHead& head() const { return head_; }
  std::size_t bytes_at_open() const { return bytes_at_open_; }

  // Whole lines, or on an error nothing of them. Errors: kStop, as above.
  Status append(std::string_view lines);
  // No more lines will come.
  void close();
  // For the child of a fork: the parent's locks must not depend on it. Takes no lock.
  void abandon_after_fork() { file_.reset(); }

 private:
  TraceFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  Status join(const TraceHead& head);
  // These return an errno, 0 when all went well.
  int repair();
  int cut_to_line(std::size_t bytes_max);
  int write_at_end(std::string_view text);
  Status failed(int error) const;

  std::string path_;
  Descriptor file_;
  TraceHead head_;
  std::size_t bytes_at_open_ = 0;
  std::size_t bytes_ = 0;  // of repair(): of all lines but the end
};

}  // namespace farandole
