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
bool in_same_folder(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code error;
  return std::filesystem::equivalent(one.parent_path(), other.parent_path(), error);
}

}  // namespace

PythonChoice choose_python(const std::string& word) {
  if (!is_name_of_python(word)) return {word, ""};
  const std::string beside = find_sibling_program(word);
  if (beside.empty()) return {word, ""};
  const char* path = std::getenv("PATH");
  const std::string other = file_of_program(word, path != nullptr ? path : "");
  return {beside, in_same_folder(beside, other) ? "" : other};
}

}  // namespace farandole
