#include "transport/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "base/descriptor_limit.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr std::size_t kControlBytes =
    CMSG_SPACE(sizeof(int) * kUnixMessageDescriptorsMax) + CMSG_SPACE(sizeof(ucred));

// Room for the ancillary data of a message, aligned as the kernel requires.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, kControlBytes> bytes{};
};

// The sender and the descriptors that recvmsg() has returned in addition to the bytes.
struct Ancillary {
  std::optional<ucred> sender;
  std::vector<Descriptor> descriptors;
};

Status socket_error(const char* call) {
  const int error = errno;
  return Status::stop(std::string(call) + " on a Unix socket failed: " + std::strerror(error));
}

Status peer_gone_error() {
  return Status::rebuild_group("the process at the other end of the Unix socket is gone");
}

Status receive_error(const char* call) {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Status::retry("no message has arrived yet");
  if (errno == ECONNRESET) return peer_gone_error();
  return socket_error(call);
}

Status check_outgoing(std::size_t bytes, std::size_t descriptors) {
  if (bytes == 0) return Status::fix_call("a message over a Unix socket cannot be empty");
  if (bytes > kUnixMessageBytesMax)
    return Status::fix_call("a message of " + std::to_string(bytes) +
                            " bytes is too long for a Unix socket; the limit is " +
                            std::to_string(kUnixMessageBytesMax));
  if (descriptors > kUnixMessageDescriptorsMax)
    return Status::fix_call("a message with " + std::to_string(descriptors) +
                            " descriptors is over the limit of " +
                            std::to_string(kUnixMessageDescriptorsMax));
  return {};
}

void parse_ancillary(msghdr& header, Ancillary& ancillary) {
  for (cmsghdr* control_header = CMSG_FIRSTHDR(&header); control_header != nullptr;
       control_header = CMSG_NXTHDR(&header, control_header)) {
    if (control_header->cmsg_level != SOL_SOCKET) continue;
    if (control_header->cmsg_type == SCM_CREDENTIALS) {
      std::memcpy(&ancillary.sender.emplace(), CMSG_DATA(control_header), sizeof(ucred));
    } else if (control_header->cmsg_type == SCM_RIGHTS) {
      const std::size_t count = (control_header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int number = -1;
        std::memcpy(&number, CMSG_DATA(control_header) + i * sizeof(int), sizeof(int));
        ancillary.descriptors.push_back(Descriptor::above_standard_streams(number));
      }
    }
  }
}

Status check_incoming(const Ancillary& ancillary, int flags) {
  const auto& sender = ancillary.sender;
  if (!sender || sender->uid != ::getuid())
    return Status::stop("rejected a message from process " +
                        (sender ? std::to_string(sender->pid) : std::string("unknown")) +
                        " of user id " + (sender ? std::to_string(sender->uid) : "unknown") +
                        "; this process belongs to user id " + std::to_string(::getuid()) +
                        ", and all processes of a job must belong to the same user");
  if ((flags & MSG_TRUNC) != 0)
    return Status::stop("rejected a message of more than " + std::to_string(kUnixMessageBytesMax) +
                        " bytes from process " + std::to_string(sender->pid));
  return {};
}

// A message can lose its descriptors but still have all its bytes. The caller gets the bytes, so
// that it can see which request the message answers.
Status lost_descriptors_error(const Ancillary& ancillary) {
  return Status::stop("lost descriptors that came with a message from process " +
                      std::to_string(ancillary.sender->pid) + ": more than " +
                      std::to_string(kUnixMessageDescriptorsMax) +
                      " were sent, or there is no room for them here: " + descriptor_advice());
}

// poll() takes whole milliseconds. Rounding up avoids a busy loop in the last millisecond.
int poll_limit_ms(TimePoint deadline) {
  const auto time_left = deadline - std::chrono::steady_clock::now();
  if (time_left <= Duration::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time_left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

}  // namespace

Result<std::pair<UnixSocket, UnixSocket>> UnixSocket::make_pair() {
  std::array<int, 2> socket_numbers{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socket_numbers.data()) != 0)
    return socket_error("socketpair");
  Descriptor first_end(socket_numbers[0]);
  Descriptor second_end(socket_numbers[1]);
  FARANDOLE_TRY_ASSIGN(auto first, adopt(std::move(first_end)));
  FARANDOLE_TRY_ASSIGN(auto second, adopt(std::move(second_end)));
  return std::pair(std::move(first), std::move(second));
}

Status UnixSocket::check(int descriptor) {
  const std::string name = "descriptor " + std::to_string(descriptor);
  int type = 0;
  socklen_t type_bytes = sizeof(type);
  if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_bytes) != 0)
    return Status::fix_call(name + (errno == EBADF ? " is not open" : " is not a socket"));
  sockaddr_un peer{};
  socklen_t peer_bytes = sizeof(peer);
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0)
    return Status::fix_call(name + " is a socket that is not connected");
  if (peer.sun_family != AF_UNIX || type != SOCK_SEQPACKET)
    return Status::fix_call(name + " is a socket, but not a Unix socket of type SOCK_SEQPACKET");
  return {};
}

Result<UnixSocket> UnixSocket::adopt(Descriptor descriptor) {
  if (Status check_status = check(descriptor.get()); !check_status.ok()) {
    if (::fcntl(descriptor.get(), F_GETFD) < 0) descriptor.release();
    return check_status;
  }
  const int enabled = 1;
  if (::setsockopt(descriptor.get(), SOL_SOCKET, SO_PASSCRED, &enabled, sizeof(enabled)) != 0)
    return socket_error("setsockopt(SO_PASSCRED)");
  if (::fcntl(descriptor.get(), F_SETFD, FD_CLOEXEC) != 0) return socket_error("fcntl(F_SETFD)");
  return UnixSocket(std::move(descriptor));
}

Status UnixSocket::try_send(std::span<const std::byte> bytes,
                            std::span<const int> descriptors) const {
  FARANDOLE_TRY(check_outgoing(bytes.size(), descriptors.size()));
  ControlBuffer control;
  iovec payload{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &payload;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.bytes.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  while (::sendmsg(descriptor_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    // ENOBUFS: the kernel is short of memory at the moment. ETOOMANYREFS: too many descriptors of
    // this user are in unread messages, until a process receives some.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS)
      return Status::retry("the Unix socket takes no further message now");
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return peer_gone_error();
    if (errno == EBADF && !descriptors.empty())
      return Status::fix_call("one of the descriptors to be sent is not open");
    return socket_error("sendmsg");
  }
  return {};
}

// Asks for the length of the message first, because it takes much more time to clear a buffer for
// the longest message.
Result<UnixMessage> UnixSocket::try_receive() const {
  ControlBuffer control;
  UnixMessage message;
  ssize_t length = -1;
  while ((length = ::recv(descriptor_.get(), nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)) < 0)
    if (errno != EINTR) return receive_error("recv");
  if (length == 0) return peer_gone_error();
  message.bytes.resize(std::min(static_cast<std::size_t>(length), kUnixMessageBytesMax));
  Ancillary ancillary;
  ancillary.descriptors.reserve(kUnixMessageDescriptorsMax);
  iovec payload{message.bytes.data(), message.bytes.size()};
  msghdr header{};
  header.msg_iov = &payload;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes.data();
  header.msg_controllen = control.bytes.size();
  ssize_t count = -1;
  while ((count = ::recvmsg(descriptor_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EINTR) return receive_error("recvmsg");
  }
  // Take ownership before any check, so that the descriptors of a rejected message are closed.
  parse_ancillary(header, ancillary);
  if (count == 0) return peer_gone_error();
  FARANDOLE_TRY(check_incoming(ancillary, header.msg_flags));
  message.bytes.resize(static_cast<std::size_t>(count));
  const bool all_valid = std::ranges::all_of(ancillary.descriptors, &Descriptor::valid);
  if ((header.msg_flags & MSG_CTRUNC) != 0 || !all_valid)
    message.descriptor_status = lost_descriptors_error(ancillary);
  else
    message.descriptors = std::move(ancillary.descriptors);
  return message;
}

Status UnixSocket::wait_for(short events, TimePoint deadline) const {
  pollfd entry{descriptor_.get(), events, 0};
  const int limit_ms = poll_limit_ms(deadline);
  const int poll_result = ::poll(&entry, 1, limit_ms);
  if (poll_result < 0 && errno != EINTR) return socket_error("poll");
  if (poll_result == 0 && std::chrono::steady_clock::now() >= deadline)
    return Status::retry("timed out on a Unix socket");
  return {};
}

Status UnixSocket::send(std::span<const std::byte> bytes, std::span<const int> descriptors,
                        TimePoint deadline) const {
  for (;;) {
    const Status send_status = try_send(bytes, descriptors);
    if (send_status.code() != StatusCode::kRetry) return send_status;
    FARANDOLE_TRY(wait_for(POLLOUT, deadline));
  }
}

Result<UnixMessage> UnixSocket::receive(TimePoint deadline) const {
  for (;;) {
    auto message = try_receive();
    if (message.ok() || message.status().code() != StatusCode::kRetry) return message;
    FARANDOLE_TRY(wait_for(POLLIN, deadline));
  }
}

}  // namespace farandole
