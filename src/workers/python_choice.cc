#include "workers/python_choice.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/sibling_program.h"
#include "workers/worker_process.h"

namespace farandole {
namespace {

// "python", "python3", "python3.12"
bool is_name_of_python(std::string_view word) {
  return word.starts_with("python") && std::ranges::all_of(word.substr(6), [](char letter) {
           return letter == '.' || (letter >= '0' && letter <= '9');
         });
}

// In a virtual environment, Python is a link to the Python of another folder. So two Pythons count
// as the same only if they are in the same folder.
bool in_same_folder(const std::filesystem::path& first_path,
                    const std::filesystem::path& second_path) {
  std::error_code error;
  return std::filesystem::equivalent(first_path.parent_path(), second_path.parent_path(), error);
}

}  // namespace

PythonChoice choose_python(const std::string& word) {
  if (!is_name_of_python(word)) return {word, ""};
  const std::string path_in_own_folder = find_sibling_program(word);
  if (path_in_own_folder.empty()) return {word, ""};
  const char* path = std::getenv("PATH");
  const std::string program_in_path = path_of_executable(word, path != nullptr ? path : "");
  return {path_in_own_folder,
          in_same_folder(path_in_own_folder, program_in_path) ? "" : program_in_path};
}

}  // namespace farandole
