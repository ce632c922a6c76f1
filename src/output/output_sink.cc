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
// but a pipe that poll() reports as writable takes PIPE_BUF bytes at once.
bool writable_now(int descriptor) {
  pollfd entry{descriptor, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLOUT | POLLERR | POLLHUP)) != 0;
}

}  // namespace

OutputSink::OutputSink(int descriptor)
    : borrowed_(descriptor), terminal_(reopened_terminal(descriptor)) {}

void OutputSink::write(std::string_view bytes, bool drops_when_full) {
  if (closed_ || failure_ != 0 || (drops_when_full && full())) return;
  pending_ += bytes;
  flush();
}

void OutputSink::flush() {
  std::size_t done = 0;
  while (done < pending_.size() && (terminal_.valid() || writable_now(borrowed_))) {
    const std::size_t part = std::min<std::size_t>(pending_.size() - done, PIPE_BUF);
    const ssize_t count = ::write(descriptor(), pending_.data() + done, part);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      closed_ = errno == EPIPE;
      failure_ = closed_ ? 0 : errno;
      done = pending_.size();
    }
  }
  pending_.erase(0, done);
}

}  // namespace farandole
