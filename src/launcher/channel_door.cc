#include "launcher/channel_door.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/try.h"
#include "transport/unix_socket.h"

namespace farandole {
namespace {

constexpr auto kSendTimeMax = std::chrono::seconds(20);

Status open_error(int slot, const std::string& why) {
  return Status::stop(format_text("cannot open the channel of rank {}: {}", slot, why));
}

}  // namespace

Result<Descriptor> open_channel(int door, int slot) {
  std::array<int, 2> ends{};
  Descriptor door_copy(::fcntl(door, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!door_copy.valid() || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return open_error(slot, format_text("{} ({})", std::strerror(errno), descriptor_advice()));
  const Descriptor program_end(ends[0]);
  Descriptor worker_end(ends[1]);
  FARANDOLE_TRY_ASSIGN(const UnixSocket socket, UnixSocket::adopt(std::move(door_copy)));
  ByteWriter message;
  message.put(static_cast<std::uint32_t>(slot));
  const Status sent = socket.send(message.take(), std::array{program_end.get()},
                                  std::chrono::steady_clock::now() + kSendTimeMax);
  if (!sent.ok()) return open_error(slot, sent.message());
  return worker_end;
}

}  // namespace farandole
