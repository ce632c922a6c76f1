#include "timeline/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr off_t kWritersByte = 0;
constexpr off_t kWriteLockByte = 1;
// If a process is killed, its write within one page is either complete or not done. So no line
// crosses a page border, unless it is longer than a page.
constexpr std::size_t kPageBytes = 4096;

// `type` is F_RDLCK, F_WRLCK or F_UNLCK. The lock belongs to the open file instead of the process,
// because a process may have several engines. Returns false and sets errno if we do not get the
// lock.
bool lock(const Descriptor& file, short type, off_t byte, bool waits) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  int result = 0;
  do result = ::fcntl(file.get(), waits ? F_OFD_SETLKW : F_OFD_SETLK, &range);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

class WriteLock {
 public:
  WriteLock(const Descriptor& file, bool waits)
      : file_(file), error_(lock(file, F_WRLCK, kWriteLockByte, waits) ? 0 : errno) {}
  ~WriteLock() { lock(file_, F_UNLCK, kWriteLockByte, false); }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

  int error() const { return error_; }

 private:
  const Descriptor& file_;
  int error_;
};

std::string read_at(const Descriptor& file, std::size_t from, std::size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t bytes_read = ::pread(file.get(), text.data(), bytes, static_cast<off_t>(from));
  text.resize(bytes_read < 0 ? 0 : static_cast<std::size_t>(bytes_read));
  return text;
}

int truncate(const Descriptor& file, std::size_t bytes) {
  return ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

int write_all(const Descriptor& file, std::string_view text, std::size_t at) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(file.get(), text.data(), text.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
    at += static_cast<std::size_t>(written);
  }
  return 0;
}

// Removes lines from the front of `text` and returns them: as many whole lines as fit, with the end
// mark, into the last `bytes_left` bytes of a page. If the next line does not fit, returns blanks
// that fill the page.
std::string take_piece(std::string_view& text, std::size_t bytes_left) {
  const std::size_t room = bytes_left - std::min(bytes_left, kTraceEnd.size());
  std::size_t bytes = text.substr(0, room).rfind('\n') + 1;
  if (bytes == 0 && bytes_left < kPageBytes && text.find('\n') < kPageBytes - kTraceEnd.size())
    return std::string(bytes_left - 1, ' ') + '\n';
  if (bytes == 0) bytes = text.find('\n') + 1;
  if (bytes == 0) bytes = text.size();
  const std::string piece(text.substr(0, bytes));
  text.remove_prefix(bytes);
  return piece;
}

// Errors that are caused by the path, so all ranks get them and the user must correct the path.
constexpr std::array kPathErrors{ENOENT, ENOTDIR, EACCES, EPERM,       EISDIR,
                                 EROFS,  ELOOP,   ENXIO,  ENAMETOOLONG};

std::string cannot_write_text(const std::string& path, std::string_view reason) {
  return format_text("the timeline cannot be written to `{}`: {}", path, reason);
}

}  // namespace

Result<TraceFile> TraceFile::open(const std::string& path, const TraceHead& head) {
  FARANDOLE_TRY_ASSIGN(TraceFile file, open_regular(path, O_CREAT));
  FARANDOLE_TRY(file.begin_or_continue(head));
  return file;
}

Result<TraceFile> TraceFile::open_existing(const std::string& path, const std::string& job) {
  FARANDOLE_TRY_ASSIGN(TraceFile file, open_regular(path, 0));
  file.waits_for_lock_ = false;
  FARANDOLE_TRY(file.continue_job(job));
  return file;
}

Result<TraceFile> TraceFile::open_regular(const std::string& path, int flags) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  TraceFile file(
      path, Descriptor::above_standard_streams(
                ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags, 0666)));
  struct stat file_status{};
  if (!file.file_.valid() || ::fstat(file.file_.get(), &file_status) != 0)
    return file.error_status(errno);
  if (!S_ISREG(file_status.st_mode))
    return Status::fix_call(cannot_write_text(path, "it is not a regular file"));
  return file;
}

Status TraceFile::begin_or_continue(const TraceHead& head) {
  const WriteLock write_lock(file_, waits_for_lock_);
  if (write_lock.error() != 0) return error_status(write_lock.error());
  const bool is_only_writer = lock(file_, F_WRLCK, kWritersByte, false);
  const auto existing_head = read_trace_head(read_at(file_, 0, kTraceHeadBytesMax));
  const bool is_ours = existing_head && existing_head->job == head.job;
  if (!is_ours && !is_only_writer)
    return Status::fix_call(
        cannot_write_text(path_, "another job writes there; give each job its own file"));
  head_ = is_ours ? *existing_head : head;
  if (!is_ours) {
    if (const int error = truncate(file_, 0); error != 0) return error_status(error);
    if (const int error = write_at_end(head.text()); error != 0) return error_status(error);
  }
  return begin_writing();
}

Status TraceFile::continue_job(const std::string& job) {
  const WriteLock write_lock(file_, waits_for_lock_);
  if (write_lock.error() != 0) return error_status(write_lock.error());
  const auto existing_head = read_trace_head(read_at(file_, 0, kTraceHeadBytesMax));
  if (!existing_head || existing_head->job != job)
    return Status::fix_call(cannot_write_text(path_, "it is not the timeline of this job"));
  head_ = *existing_head;
  return begin_writing();
}

// Repairs the end of the file, and takes the lock that all writers share.
Status TraceFile::begin_writing() {
  if (const int error = write_at_end({}); error != 0) return error_status(error);
  bytes_at_open_ = bytes_;
  return lock(file_, F_RDLCK, kWritersByte, false) ? Status() : error_status(errno);
}

Status TraceFile::append(std::string_view lines) {
  const WriteLock write_lock(file_, waits_for_lock_);
  const int error = write_lock.error() == 0 ? write_at_end(lines) : write_lock.error();
  return error == 0 ? Status() : error_status(error);
}

void TraceFile::close() {
  // Release the lock explicitly, because a forked child may still have the file open.
  lock(file_, F_UNLCK, kWritersByte, false);
  file_.reset();
}

// Finds the end of the last whole line and cuts off an incomplete line after it.
int TraceFile::repair() {
  struct stat file_status{};
  if (::fstat(file_.get(), &file_status) != 0) return errno;
  bytes_ = static_cast<std::size_t>(file_status.st_size);
  const std::size_t tail_bytes = std::min(bytes_, kTraceEnd.size());
  const std::string tail = read_at(file_, bytes_ - tail_bytes, tail_bytes);
  if (tail == kTraceEnd) bytes_ -= tail_bytes;
  return tail.empty() || tail.back() == '\n' ? 0 : cut_to_line(bytes_);
}

int TraceFile::cut_to_line(std::size_t bytes_max) {
  const std::size_t tail_bytes = std::min(bytes_max, kTraceLineBytesMax);
  const auto end = read_at(file_, bytes_max - tail_bytes, tail_bytes).rfind('\n');
  bytes_ = end == std::string::npos ? 0 : bytes_max - tail_bytes + end + 1;
  return truncate(file_, bytes_);
}

// Writes `text` after the last line. If this fails, the file has the same lines as before.
int TraceFile::write_at_end(std::string_view text) {
  if (const int error = repair(); error != 0) return error;
  std::size_t at = bytes_;
  do {
    std::string piece = take_piece(text, kPageBytes - at % kPageBytes);
    const std::size_t bytes = piece.size();
    if (const int error = write_all(file_, piece += kTraceEnd, at); error != 0) {
      truncate(file_, bytes_);
      // Restore the end mark, for which there was room before. If only a part of it can be written,
      // cut that part off.
      if (write_all(file_, kTraceEnd, bytes_) != 0) truncate(file_, bytes_);
      return error;
    }
    at += bytes;
  } while (!text.empty());
  bytes_ = at;
  return 0;
}

Status TraceFile::error_status(int error) const {
  const std::string text = cannot_write_text(
      path_, error == EAGAIN ? "another process writes to it" : std::strerror(error));
  return std::ranges::find(kPathErrors, error) != kPathErrors.end() ? Status::fix_call(text)
                                                                    : Status::stop(text);
}

}  // namespace farandole
