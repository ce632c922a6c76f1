// RankFiles: writes each worker's unchanged output to FOLDER/rank.<NN>/stdout and stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// Only one thread may use it. A write may block, for as long as the file system needs.
class RankFiles {
 public:
  // An object that writes no files.
  RankFiles() = default;
  // Creates or empties the files of `workers` workers, the first of which has the rank `first_rank`
  // in a job of `size` ranks. Errors: kFixCall with the path and the reason.
  static Result<RankFiles> create(const std::string& folder, int workers, int first_rank, int size);
  // Creates or empties the files of all workers of a job.
  static Result<RankFiles> create(const std::string& folder, int workers) {
    return create(folder, workers, 0, workers);
  }

  // `worker` counts from 0. `stream` is 0 for standard output and 1 for standard error. If a write
  // fails, nothing more is written to that file. Only the first failure of all files returns a text
  // for the user.
  std::optional<std::string> write(int worker, std::size_t stream, std::string_view bytes);

 private:
  struct File {
    std::string path;
    Descriptor descriptor;  // invalid after a failure
  };

  std::string folder_;
  std::vector<File> files_;  // two for each rank
  bool has_failed_ = false;
};

}  // namespace farandole
