#include "output/output_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace farandole {
namespace {

// Opens the terminal again, in non-blocking mode, because the mode of the original descriptor is
// shared with other processes. Invalid if the descriptor is not a terminal.
Descriptor reopened_terminal(int descriptor) {
  if (::isatty(descriptor) != 1) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  return Descriptor(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

// Returns whether a write of PIPE_BUF bytes would not block. The descriptor is in blocking mode,
// but a pipe that poll() reports as writable takes PIPE_BUF bytes without blocking.
bool is_writable_now(int descriptor) {
  pollfd entry{descriptor, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLOUT | POLLERR | POLLHUP)) != 0;
}

}  // namespace

OutputSink::OutputSink(int descriptor)
    : borrowed_descriptor_(descriptor), own_terminal_(reopened_terminal(descriptor)) {}

void OutputSink::write(std::string_view bytes, bool drops_when_full) {
  if (closed_ || failure_ != 0 || (drops_when_full && full())) return;
  pending_ += bytes;
  flush();
}

void OutputSink::flush() {
  std::size_t bytes_written = 0;
  while (bytes_written < pending_.size() &&
         (own_terminal_.valid() || is_writable_now(borrowed_descriptor_))) {
    const std::size_t part_bytes = std::min<std::size_t>(pending_.size() - bytes_written, PIPE_BUF);
    const ssize_t count = ::write(descriptor(), pending_.data() + bytes_written, part_bytes);
    if (count >= 0) {
      bytes_written += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      closed_ = errno == EPIPE;
      failure_ = closed_ ? 0 : errno;
      bytes_written = pending_.size();
    }
  }
  pending_.erase(0, bytes_written);
}

}  // namespace farandole
