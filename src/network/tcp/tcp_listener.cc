#include "network/tcp/tcp_listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/allocation.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

constexpr int kBacklog = 1024;
constexpr int kAcceptsPerCall = 16;  // after these accepts, a call continues the handshakes
// A try may fail, because its port must be free on all addresses.
constexpr int kAnyPortTriesMax = 16;
constexpr std::size_t kV6NetworkBytes = 8;  // one sender usually has a whole /64 network

SocketAddress source_of(SocketAddress address) {
  if (address.is_v6) std::fill(address.ip.begin() + kV6NetworkBytes, address.ip.end(), 0);
  return address.with_port(0);
}

// Returns kRetry if the port is not free.
Result<Descriptor> listen_at(const SocketAddress& address) {
  const auto listen_error = [&](const char* call) {
    const std::string text =
        format_text("cannot listen at {}: {}: {}", address.text(), call, std::strerror(errno));
    if (errno == EADDRINUSE) return Status::retry(text);
    if (errno == EADDRNOTAVAIL)
      return Status::fix_call(text + "; choose an address of this host (see `ip address`)");
    return Status::stop(text);
  };
  Descriptor socket = Descriptor::above_standard_streams(
      ::socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return listen_error("socket");
  const int enabled = 1;
  // With SO_REUSEADDR, old connections of an earlier job do not block the port.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof(enabled));
  if (address.is_v6)
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &enabled, sizeof(enabled));
  const KernelAddress kernel = kernel_address_of(address);
  if (::bind(socket.get(), kernel.get(), kernel.bytes) != 0) return listen_error("bind");
  if (::listen(socket.get(), kBacklog) != 0) return listen_error("listen");
  return socket;
}

}  // namespace

Result<std::unique_ptr<TcpListener>> TcpListener::open(const TlsContext& context,
                                                       const ListenOptions& options) {
  if (options.addresses.empty())
    return Status::fix_call("there is no address to listen at; choose a network interface");
  if (options.port_first > options.port_last)
    return Status::fix_call(
        format_text("the range of ports {}-{} is empty; write the lower port "
                    "first",
                    options.port_first, options.port_last));
  FARANDOLE_TRY_ASSIGN(EventSet events, EventSet::make());
  std::unique_ptr<TcpListener> listener(new TcpListener(context, options, std::move(events)));
  FARANDOLE_TRY(listener->bind_all());
  listener->reserve_descriptor_ =
      Descriptor::above_standard_streams(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const Descriptor& socket : listener->sockets_)
    FARANDOLE_TRY(listener->events_.add(socket.get(), listener->next_id_++, false));
  return listener;
}

Status TcpListener::bind_all() {
  const bool is_any_port = options_.port_last == 0;
  const int first = is_any_port ? 0 : std::max<int>(options_.port_first, 1);
  const int last = is_any_port ? kAnyPortTriesMax - 1 : options_.port_last;
  Status problem;
  for (int number = first; number <= last; ++number) {
    problem = bind_at(is_any_port ? std::uint16_t{0} : static_cast<std::uint16_t>(number));
    if (problem.code() != StatusCode::kRetry) return problem;
  }
  if (first == last)
    return Status::stop(
        format_text("port {} is not free: {}; choose another one, or end the "
                    "program that uses it",
                    first, problem.message()));
  return Status::stop(format_text(
      "no port of {}-{} is free: {}; choose a larger range, or end the programs that use it", first,
      options_.port_last, problem.message()));
}

Status TcpListener::bind_at(std::uint16_t port) {
  sockets_.clear();
  addresses_.clear();
  for (const SocketAddress& address : options_.addresses) {
    FARANDOLE_TRY_ASSIGN(Descriptor socket, listen_at(address.with_port(port)));
    FARANDOLE_TRY_ASSIGN(const SocketAddress bound_address, own_address_of(socket.get()));
    port = bound_address.port;
    sockets_.push_back(std::move(socket));
    addresses_.push_back(bound_address);
  }
  return {};
}

Result<std::unique_ptr<Connection>> TcpListener::try_accept(TimePoint now) {
  FARANDOLE_TRY_ASSIGN(const auto ready_ids, events_.ready_ids());
  for (const std::uint64_t id : ready_ids) {
    if (id < sockets_.size()) {
      accept_from(sockets_[id], now);
      continue;
    }
    const auto handshake = std::ranges::find(handshakes_, id, &Handshake::id);
    if (handshake != handshakes_.end()) FARANDOLE_TRY(advance(handshake));
  }
  drop_expired(now);
  if (proven_connections_.empty()) return std::unique_ptr<Connection>();
  auto connection = std::move(proven_connections_.front());
  proven_connections_.erase(proven_connections_.begin());
  return connection;
}

void TcpListener::accept_from(const Descriptor& socket, TimePoint now) {
  for (int i = 0; i < kAcceptsPerCall; ++i) {
    Descriptor accepted = Descriptor::above_standard_streams(
        ::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.valid()) {
      begin_handshake(std::move(accepted), now);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    const bool out_of_resources =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    // Any other error affects only the connection that would have been accepted.
    if (out_of_resources && !make_room_for_descriptor(socket)) return;
  }
}

// Frees a descriptor for accept(). Otherwise the connection would stay in the queue and wake the
// listener again and again.
bool TcpListener::make_room_for_descriptor(const Descriptor& socket) {
  if (!handshakes_.empty()) {
    evict_one_handshake();
    return true;
  }
  if (!reserve_descriptor_.valid()) return false;
  reserve_descriptor_.reset();
  Descriptor evicted_socket(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (evicted_socket.valid()) ++counts_.evicted;
  evicted_socket.reset();
  reserve_descriptor_ =
      Descriptor::above_standard_streams(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return true;
}

void TcpListener::begin_handshake(Descriptor socket, TimePoint now) {
  if (handshakes_.size() >= options_.handshakes_max) evict_one_handshake();
  const Status status = catch_bad_alloc(
      [] { return "cannot accept a connection"; },
      [&]() -> Status {
        FARANDOLE_TRY_ASSIGN(const SocketAddress peer, peer_address_of(socket.get()));
        FARANDOLE_TRY_ASSIGN(auto wire, TcpConnection::adopt(std::move(socket), options_.tcp));
        auto session = TlsSession::listen(context_, std::move(wire), options_.acceptance);
        const std::uint64_t id = next_id_++;
        FARANDOLE_TRY(events_.add(session->descriptor(), id, false));
        handshakes_.push_back({.id = id,
                               .session = std::move(session),
                               .source = source_of(peer),
                               .deadline = now + options_.handshake_time_max});
        return {};
      });
  if (status.ok()) return;
  ++counts_.rejected;
  last_rejection_ = status;
}

Status TcpListener::advance(Handshakes::iterator handshake) {
  TlsSession& session = *handshake->session;
  const auto progress = session.try_handshake();
  if (!progress.ok()) {
    reject(handshake, progress.status());
    return {};
  }
  if (*progress == TlsSession::Progress::kDone) {
    events_.remove(session.descriptor());
    ++counts_.accepted;
    proven_connections_.push_back(std::move(handshake->session));
    handshakes_.erase(handshake);
    return {};
  }
  if (session.has_unsent() == handshake->waits_to_send) return {};
  handshake->waits_to_send = session.has_unsent();
  return events_.change(session.descriptor(), handshake->id, handshake->waits_to_send);
}

// Closes the connection.
void TcpListener::drop(Handshakes::iterator handshake) {
  events_.remove(handshake->session->descriptor());
  handshakes_.erase(handshake);
}

void TcpListener::reject(Handshakes::iterator handshake, const Status& reason) {
  ++counts_.rejected;
  last_rejection_ = reason;
  drop(handshake);
}

void TcpListener::drop_expired(TimePoint now) {
  // All handshakes have the same time limit, so the oldest one is the first to expire.
  while (!handshakes_.empty() && handshakes_.front().deadline <= now) {
    ++counts_.expired;
    drop(handshakes_.begin());
  }
}

void TcpListener::evict_one_handshake() {
  std::map<SocketAddress, std::size_t> handshakes_by_source;
  for (const Handshake& handshake : handshakes_) ++handshakes_by_source[handshake.source];
  const auto largest_source = std::ranges::max_element(
      handshakes_by_source, {},
      [](const auto& source_and_count) { return source_and_count.second; });
  if (largest_source == handshakes_by_source.end()) return;
  ++counts_.evicted;
  drop(std::ranges::find(handshakes_, largest_source->first, &Handshake::source));
}

// Of each handshake, closes only the descriptor. It does not touch the session, because the
// parent's thread may have been changing it during the fork.
void TcpListener::close_sockets() {
  sockets_.clear();
  for (const Handshake& handshake : handshakes_)
    if (handshake.session != nullptr) ::close(handshake.session->descriptor());
}

void TcpListener::stop_listening() {
  for (const Descriptor& socket : sockets_) ::shutdown(socket.get(), SHUT_RDWR);
}

void TcpListener::set_acceptance(const AcceptedLinks& acceptance) {
  options_.acceptance = acceptance;
  counts_.rejected += handshakes_.size();
  while (!handshakes_.empty()) drop(handshakes_.begin());
  proven_connections_.clear();
}

TimePoint TcpListener::next_deadline() const {
  return handshakes_.empty() ? TimePoint::max() : handshakes_.front().deadline;
}

}  // namespace farandole
