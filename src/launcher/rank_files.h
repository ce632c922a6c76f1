// RankFiles: writes the unchanged output of each worker to its own files, FOLDER/rank.<NN>/stdout
// and stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// For one thread. A write blocks as long as the file system does.
class RankFiles {
 public:
  // Writes no files.
  RankFiles() = default;
  // Makes the folders and the files of all ranks. Existing files are emptied. Errors: kFixCall with
  // the path and the reason.
  static Result<RankFiles> create(const std::string& folder, int workers);

  // `stream` is 0 for standard output, 1 for standard error. If a write fails, the file ends there.
  // Only the first failure returns a text for the user.
  std::optional<std::string> write(int rank, std::size_t stream, std::string_view bytes);

 private:
  struct File {
    std::string path;
    Descriptor descriptor;  // invalid after a failure
  };

  std::string folder_;
  std::vector<File> files_;  // two for each rank
  bool failed_ = false;
};

}  // namespace farandole
