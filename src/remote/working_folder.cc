#include "remote/working_folder.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/format.h"

namespace farandole {

Result<std::string> working_folder() {
  std::error_code error;
  const auto folder = std::filesystem::current_path(error);
  if (error)
    return Status::fix_call(
        format_text("the working directory is unknown: {}; start the job in a folder that exists",
                    error.message()));
  const char* shell_path = std::getenv("PWD");
  const bool is_same = shell_path != nullptr && shell_path[0] == '/' &&
                       std::filesystem::equivalent(shell_path, folder, error) && !error;
  return is_same ? std::string(shell_path) : folder.string();
}

}  // namespace farandole
