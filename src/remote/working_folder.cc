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
  const char* name = std::getenv("PWD");
  const bool is_same = name != nullptr && name[0] == '/' &&
                       std::filesystem::equivalent(name, folder, error) && !error;
  return is_same ? std::string(name) : folder.string();
}

}  // namespace farandole
