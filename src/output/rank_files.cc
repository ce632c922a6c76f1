#include "output/rank_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr std::array<std::string_view, 2> kFileNames{"stdout", "stderr"};

Status output_dir_error(std::string_view action, const std::string& path,
                        const std::string& reason) {
  return Status::fix_call(
      format_text("--output-dir: cannot {} `{}`: {}; nothing was started", action, path, reason));
}

Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? output_dir_error("make the folder", path, error.message()) : Status();
}

Result<Descriptor> make_file(const std::string& path) {
  // O_NONBLOCK: if the path is a pipe, opening it must not wait for its reader.
  Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  struct stat file_status{};
  if (!file.valid() || ::fstat(file.get(), &file_status) != 0) {
    const std::string hint = errno == EMFILE ? " (look at `ulimit -n`)" : "";
    return output_dir_error("write", path, std::strerror(errno) + hint);
  }
  if (!S_ISREG(file_status.st_mode))
    return output_dir_error("write", path, "it is not a regular file");
  return file;
}

// Returns 0, or the errno of a failed write.
int write_all(const Descriptor& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return errno;
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

// False if the file was removed. Writes to a removed file succeed, but the output is lost.
bool still_exists(const Descriptor& file) {
  struct stat file_status{};
  return ::fstat(file.get(), &file_status) != 0 || file_status.st_nlink > 0;
}

}  // namespace

Result<RankFiles> RankFiles::create(const std::string& folder, int workers, int first_rank,
                                    int size) {
  RankFiles files;
  files.folder_ = folder;
  const std::size_t width = std::to_string(size - 1).size();
  for (int rank = first_rank; rank < first_rank + workers; ++rank) {
    const std::string rank_folder = format_text("{}/rank.{:0{}}", folder, rank, width);
    FARANDOLE_TRY(make_folder(rank_folder));
    for (const std::string_view name : kFileNames) {
      const std::string path = format_text("{}/{}", rank_folder, name);
      FARANDOLE_TRY_ASSIGN(Descriptor file, make_file(path));
      files.files_.push_back({path, std::move(file)});
    }
  }
  return files;
}

std::optional<std::string> RankFiles::write(int worker, std::size_t stream,
                                            std::string_view bytes) {
  const std::size_t index = static_cast<std::size_t>(worker) * kFileNames.size() + stream;
  if (files_.empty() || bytes.empty() || !files_.at(index).descriptor.valid()) return std::nullopt;
  File& file = files_[index];
  const int failure = write_all(file.descriptor, bytes);
  if (failure == 0 && still_exists(file.descriptor)) return std::nullopt;
  file.descriptor.reset();
  if (std::exchange(has_failed_, true)) return std::nullopt;
  const std::string reason =
      failure != 0 ? std::strerror(failure) : "somebody has removed the file";
  return format_text(
      "cannot write `{}` any more: {}; it ends here, and so may others in `{}`; the job goes on",
      file.path, reason, folder_);
}

}  // namespace farandole
