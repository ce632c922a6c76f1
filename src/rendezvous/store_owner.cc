#include "rendezvous/store_owner.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/thread_setup.h"
#include "base/try.h"
#include "rendezvous/keys.h"
#include "rendezvous/store_client.h"

namespace farandole {
namespace {

// The longest time for which a leaving owner waits for ranks that have not yet read the key
// `complete`. Ranks read this key within moments unless they are stopped.
constexpr auto kLeaveLimit = std::chrono::seconds(5);
constexpr const char* kEndedEarlyText = " before all ranks of the job had met";

// Returns the prefix of a formation's keys; empty if the key does not belong to a formation.
std::string prefix_of(const std::string& key) {
  const std::string_view start = keys::kEnginePrefix;
  const auto end = key.find('/', start.size());
  return key.starts_with(start) && end != std::string::npos ? key.substr(0, end + 1) : "";
}

int ms_until(TimePoint deadline) {
  const auto time_left = deadline - std::chrono::steady_clock::now();
  return static_cast<int>(
      std::max<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(time_left).count(), 0));
}

}  // namespace

StoreOwner::StoreOwner(std::unique_ptr<StoreServer> server)
    : owner_pid_(::getpid()), server_(std::move(server)) {}

Result<std::unique_ptr<StoreOwner>> StoreOwner::create() {
  FARANDOLE_TRY_ASSIGN(auto server, StoreServer::create("the rank that keeps the rendezvous"));
  std::unique_ptr<StoreOwner> owner(new StoreOwner(std::move(server)));
  owner->stop_event_ = Descriptor::above_standard_streams(::eventfd(0, EFD_CLOEXEC));
  if (!owner->stop_event_.valid())
    return Status::stop(std::string("cannot make an eventfd: ") + std::strerror(errno));
  return owner;
}

Result<std::unique_ptr<StoreOwner>> StoreOwner::open(UnixListener listener, int members) {
  FARANDOLE_TRY_ASSIGN(auto owner, create());
  owner->listener_ = std::move(listener);
  owner->missing_ranks_ = members - 1;
  return owner;
}

Result<std::unique_ptr<StoreOwner>> StoreOwner::open(std::shared_ptr<const TlsContext> context,
                                                     const ListenOptions& options) {
  FARANDOLE_TRY_ASSIGN(auto owner, create());
  owner->context_ = std::move(context);
  FARANDOLE_TRY_ASSIGN(owner->host_listener_,
                       StoreListener::open(*owner->context_, options, *owner->server_));
  owner->server_->set_end_watcher(
      [self = owner.get()](const std::string& client, const std::vector<std::string>& keys) {
        self->fail_formations_of(client, keys);
      });
  return owner;
}

Status StoreOwner::start() {
  try {
    thread_ = std::make_unique<std::thread>(&StoreOwner::serve, this);
  } catch (const std::system_error& error) {
    return Status::stop(std::string("cannot start the thread that keeps the rendezvous (") +
                        error.what() + "); raise `ulimit -u` or the pids limit of the container");
  }
  return {};
}

StoreOwner::~StoreOwner() {
  if (owner_pid_ != ::getpid()) {
    if (listener_) listener_->close();
    if (host_listener_) host_listener_.release()->close_sockets();
    (void)thread_.release();
    // Leak the server, because the parent's thread may have been changing it during the fork.
    (void)server_.release();
    return;
  }
  if (!thread_) return;
  const std::uint64_t increment = 1;
  while (::write(stop_event_.get(), &increment, sizeof(increment)) != sizeof(increment))
    CHECK(errno == EINTR, "an eventfd takes one more");
  thread_->join();
}

void StoreOwner::serve() {
  set_up_own_thread("farandole-store");
  try {
    while (!stop_requested_ || (!may_leave() && std::chrono::steady_clock::now() < leave_deadline_))
      serve_once();
  } catch (const std::bad_alloc&) {
    // Destroy the server to close all sockets, so that the ranks get an error without further
    // delay.
    if (listener_) listener_->close();
    host_listener_.reset();
    server_.reset();
  }
}

void StoreOwner::serve_once() {
  // poll() ignores a descriptor of −1. If the kernel takes no more descriptors, the thread tries to
  // send them again after a pause. It cannot poll the server during this pause: the sockets have
  // room, so poll() would return immediately.
  const bool retries_descriptors = server_->has_unsent_descriptors();
  std::array<pollfd, 4> entries{
      pollfd{retries_descriptors ? -1 : server_->ready_descriptor(), POLLIN, 0},
      pollfd{listener_ ? listener_->descriptor().get() : -1, POLLIN, 0},
      pollfd{stop_requested_ ? -1 : stop_event_.get(), POLLIN, 0},
      pollfd{host_listener_ ? host_listener_->ready_descriptor() : -1, POLLIN, 0}};
  int limit_ms = stop_requested_ ? ms_until(leave_deadline_) : -1;
  if (retries_descriptors) limit_ms = 1;
  ::poll(entries.data(), entries.size(), limit_ms);
  if (entries[1].revents != 0) accept_all();
  // The lines about rejected clients are ignored here, because these clients get errors.
  if (entries[3].revents != 0) (void)host_listener_->serve_ready();
  for (const std::string& line : server_->serve_ready())
    if (listener_ && failure_.empty()) failure_ = line + kEndedEarlyText;
  report_failure();
  if (host_listener_) publish_whether_alone();
  if (entries[2].revents == 0) return;
  stop_requested_ = true;
  if (host_listener_) host_listener_->stop_listening();
  leave_deadline_ = std::chrono::steady_clock::now() + kLeaveLimit;
}

// Accepts all waiting connections. When all ranks have connected, or after an error, closes the
// listening socket, which releases the name.
void StoreOwner::accept_all() {
  while (missing_ranks_ > 0) {
    const Status accept_status = accept_one();
    if (accept_status.code() == StatusCode::kRetry) return;
    if (!accept_status.ok()) {
      // After a failure, the code below closes the listening socket, because the next accept()
      // would fail for the same connection.
      if (failure_.empty())
        failure_ = "the rank that keeps the rendezvous cannot take in another rank: " +
                   accept_status.message();
      break;
    }
    --missing_ranks_;
  }
  listener_->close();
}

Status StoreOwner::accept_one() {
  FARANDOLE_TRY_ASSIGN(auto client, listener_->accept());
  const std::string name = "process " + std::to_string(client.process);
  return server_->adopt_client(name, std::move(client.socket));
}

// If the formation can no longer complete, publishes the reason for all members, so that they need
// not wait for the time-out.
void StoreOwner::report_failure() {
  has_result_ = has_result_ || server_->has_key_with_prefix(keys::complete(keys::kFirstEpoch));
  if (failure_.empty() || has_result_ || !is_in_formation()) return;
  (void)server_->set(keys::complete(keys::kFirstEpoch), keys::text_value(failure_));
}

// This process is also a client, so 1 means that no other rank is connected.
void StoreOwner::publish_whether_alone() {
  const bool is_alone = server_->clients() <= 1;
  if (is_alone == is_alone_) return;
  is_alone_ = is_alone;
  if (is_alone)
    (void)server_->set(keys::others_have_left(), {});
  else
    server_->remove(keys::others_have_left());
}

// If a client has ended, the formations in which it has set keys cannot complete.
void StoreOwner::fail_formations_of(const std::string& client,
                                    const std::vector<std::string>& keys) {
  const Bytes failure = keys::text_value(client + " has ended" + kEndedEarlyText);
  for (const std::string& key : keys)
    if (const auto prefix = prefix_of(key); !prefix.empty())
      (void)server_->set(prefix + keys::complete(keys::kFirstEpoch),
                         failure);  // has no effect if the formation already has a result
}

bool StoreOwner::is_in_formation() const {
  return server_->has_key_with_prefix(listener_ ? keys::epoch_key(keys::kFirstEpoch, "")
                                                : keys::kEnginePrefix);
}

bool StoreOwner::may_leave() const { return server_->clients() == 0 || !is_in_formation(); }

Result<std::shared_ptr<LocalStore>> start_and_connect(std::unique_ptr<StoreOwner> owner) {
  // C++ destroys members in reverse order. So the client is destroyed before the owner, and the
  // owner does not wait for this client.
  struct OwnerAndClient {
    std::unique_ptr<StoreOwner> owner;
    std::unique_ptr<StoreClient> client;
  };
  FARANDOLE_TRY_ASSIGN(Descriptor own_client, owner->own_client());
  FARANDOLE_TRY_ASSIGN(UnixSocket socket, UnixSocket::adopt(std::move(own_client)));
  FARANDOLE_TRY(owner->start());
  // A shared_ptr owns both objects, so that the returned Store keeps both alive.
  auto owner_and_client = std::make_shared<OwnerAndClient>(
      std::move(owner), StoreClient::from_socket(std::move(socket)));
  return std::shared_ptr<LocalStore>(owner_and_client, owner_and_client->client.get());
}

}  // namespace farandole
