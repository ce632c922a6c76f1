// RankFiles: what each worker writes, as it wrote it, in files of its own:
// FOLDER/rank.<NN>/stdout and stderr.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// One thread. Writing blocks as long as the file system does.
class RankFiles {
 public:
  // None: nothing is kept.
  RankFiles() = default;
  // Makes the folders and the files of all ranks; files of these names lose what was in them.
  // Errors: kFixCall with the path and the reason.
  static Result<RankFiles> create(const std::string& folder, int workers);

  // `stream`: 0 standard output, 1 standard error. A file that cannot be written any more ends
  // there. Only the first such failure gives a text for the user.
  std::optional<std::string> write(int rank, std::size_t stream, std::string_view bytes);

 private:
  struct File {
    std::string path;
    Descriptor descriptor;  // invalid once it has failed
  };

  std::string folder_;
  std::vector<File> files_;  // two for each rank
  bool failed_ = false;
};

}  // namespace farandole
