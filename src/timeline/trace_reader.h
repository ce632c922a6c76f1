// TraceReader: reads the events of some ranks from the timeline file of a job (TraceFile), piece by
// piece. It takes no lock, so the ranks must have stopped their timelines or ended.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// Only one thread may use it.
class TraceReader {
 public:
  // Ranks first_rank … first_rank + ranks − 1.
  struct Ranks {
    int first_rank = 0;
    int ranks = 0;
    bool contains(int rank) const { return rank >= first_rank && rank - first_rank < ranks; }
  };
  // Opens the file. Lines that are appended later are not read. Errors, with path and reason:
  // kFixCall if the file cannot be opened or is not the file of this job.
  static Result<TraceReader> open(const std::string& path, const std::string& job,
                                  const Ranks& ranks);

  // The line of the first event in the file, of any rank; empty if there is none. No two files of a
  // job have the same first event.
  const std::string& first_event() const { return first_event_; }
  // Reads the next few pages, and returns the lines of the ranks in these pages. There may be none.
  // Drops incomplete lines. Errors: kStop.
  Result<std::string> next();
  bool at_end() const { return position_ >= bytes_; }

 private:
  TraceReader(std::string path, Descriptor file, const Ranks& ranks)
      : path_(std::move(path)), file_(std::move(file)), ranks_(ranks) {}

  Result<std::string> read_at_most(std::size_t bytes_max) const;

  std::string path_;
  Descriptor file_;
  Ranks ranks_;
  std::size_t bytes_ = 0;        // the size of the file when it was opened
  std::size_t position_ = 0;     // how many of these bytes were read
  std::string incomplete_line_;  // the beginning of a line whose end was not read yet
  std::string first_event_;
};

}  // namespace farandole
