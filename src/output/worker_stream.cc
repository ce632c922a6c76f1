#include "output/worker_stream.h"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace farandole {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kTerminalBytesMax = 1024 * 1024;

Status stream_error(const char* what) {
  return Status::stop(std::string("cannot make a pipe or terminal for a worker's output: ") + what +
                      ": " + std::strerror(errno) + " (look at `ulimit -n`)");
}

bool set_non_blocking(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  return flags >= 0 && ::fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Result<WorkerStream> WorkerStream::make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return stream_error("pipe2");
  WorkerStream stream{Descriptor(ends[0]), Descriptor(ends[1])};
  if (!set_non_blocking(stream.ours)) return stream_error("fcntl");
  return stream;
}

Result<WorkerStream> WorkerStream::make_terminal(const winsize& size) {
  Descriptor ours(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!ours.valid() || ::grantpt(ours.get()) != 0 || ::unlockpt(ours.get()) != 0)
    return stream_error("posix_openpt");
  std::array<char, 64> name{};
  if (::ptsname_r(ours.get(), name.data(), name.size()) != 0) return stream_error("ptsname_r");
  Descriptor theirs(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!theirs.valid()) return stream_error(name.data());
  termios mode{};
  if (::tcgetattr(theirs.get(), &mode) != 0) return stream_error("tcgetattr");
  ::cfmakeraw(&mode);
  if (::tcsetattr(theirs.get(), TCSANOW, &mode) != 0) return stream_error("tcsetattr");
  set_window(ours, size);
  if (!set_non_blocking(ours)) return stream_error("fcntl");
  return WorkerStream{std::move(ours), std::move(theirs)};
}

winsize worker_window(int terminal, int prefix_columns) {
  winsize size{};
  if (::ioctl(terminal, TIOCGWINSZ, &size) != 0) return winsize{};
  if (size.ws_col > prefix_columns)
    size.ws_col = static_cast<unsigned short>(size.ws_col - prefix_columns);
  return size;
}

void set_window(const Descriptor& ours, const winsize& size) {
  ::ioctl(ours.get(), TIOCSWINSZ, &size);
}

StreamRead read_available(const Descriptor& stream) {
  StreamRead result;
  result.bytes.resize(kReadBytes);
  ssize_t count = -1;
  do {
    count = ::read(stream.get(), result.bytes.data(), result.bytes.size());
  } while (count < 0 && errno == EINTR);
  // If the other end of a pseudo-terminal is closed, read() fails with EIO instead of returning 0.
  if (count <= 0) result.ended = count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  result.bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return result;
}

std::size_t capacity_of(const Descriptor& stream) {
  const int bytes = ::fcntl(stream.get(), F_GETPIPE_SZ);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : kTerminalBytesMax;
}

}  // namespace farandole
