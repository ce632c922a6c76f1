// Finds our own executable, and programs in its folder. In a virtual environment, Python and its
// programs are in this folder, so we find them even if the environment is not activated.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace farandole {

// Returns the path of our own executable, or sets `error`.
inline std::filesystem::path own_program_path(std::error_code& error) {
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

// Returns the path of an executable file with this name. Empty if there is none.
inline std::string find_sibling_program(const std::string& name) {
  std::error_code error;
  const auto own_path = own_program_path(error);
  const auto program = own_path.parent_path() / name;
  const bool is_executable = !error && std::filesystem::is_regular_file(program, error) &&
                             ::access(program.c_str(), X_OK) == 0;
  return is_executable ? program.string() : "";
}

}  // namespace farandole
