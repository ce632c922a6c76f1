#include "timeline/trace_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/format.h"
#include "base/try.h"
#include "timeline/trace_text.h"

namespace farandole {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;

std::string cannot_read_text(const std::string& path, std::string_view reason) {
  return format_text("the timeline `{}` cannot be read: {}", path, reason);
}

// Removes a line with its line break from the front of `text`. False if no whole line is left.
bool take_line(std::string_view& text, std::string_view& line) {
  const auto end = text.find('\n');
  if (end == std::string_view::npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

}  // namespace

Result<TraceReader> TraceReader::open(const std::string& path, const std::string& job,
                                      const Ranks& ranks) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  TraceReader reader(path,
                     Descriptor::above_standard_streams(
                         ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)),
                     ranks);
  struct stat file_status{};
  if (!reader.file_.valid() || ::fstat(reader.file_.get(), &file_status) != 0)
    return Status::fix_call(cannot_read_text(path, std::strerror(errno)));
  if (!S_ISREG(file_status.st_mode))
    return Status::fix_call(cannot_read_text(path, "it is not a regular file"));
  reader.bytes_ = static_cast<std::size_t>(file_status.st_size);
  FARANDOLE_TRY_ASSIGN(const std::string first_text, reader.read_at_most(kReadBytes));
  const auto head = read_trace_head(first_text);
  if (!head || head->job != job)
    return Status::fix_call(cannot_read_text(path, "it is not the timeline of this job"));
  reader.position_ = head->text().size();
  std::string_view text =
      std::string_view(first_text).substr(std::min(reader.position_, first_text.size()));
  for (std::string_view line; reader.first_event_.empty() && take_line(text, line);)
    if (rank_of_trace_line(line)) reader.first_event_ = line;
  return reader;
}

Result<std::string> TraceReader::read_at_most(std::size_t bytes_max) const {
  std::string text(std::min(bytes_max, bytes_ - std::min(position_, bytes_)), '\0');
  const ssize_t count =
      ::pread(file_.get(), text.data(), text.size(), static_cast<off_t>(position_));
  if (count < 0) return Status::stop(cannot_read_text(path_, std::strerror(errno)));
  text.resize(static_cast<std::size_t>(count));
  return text;
}

Result<std::string> TraceReader::next() {
  FARANDOLE_TRY_ASSIGN(const std::string new_text, read_at_most(kReadBytes));
  position_ =
      new_text.empty() ? bytes_ : position_ + new_text.size();  // the file may have become shorter
  incomplete_line_ += new_text;
  std::string own_lines;
  std::string_view text = incomplete_line_;
  for (std::string_view line; take_line(text, line);) {
    const auto rank = rank_of_trace_line(line);
    if (rank && ranks_.contains(*rank)) (own_lines += line) += '\n';
  }
  incomplete_line_ = text.size() <= kTraceLineBytesMax ? std::string(text) : std::string();
  return own_lines;
}

}  // namespace farandole
