#include "rendezvous/named_store.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/try.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_owner.h"
#include "rendezvous/waiting.h"
#include "transport/unix_listener.h"

namespace farandole {
namespace {

// The limits of the pause between two attempts to find the owner. The first pauses are short,
// because most ranks start at nearly the same time.
constexpr std::chrono::milliseconds kPauseMin{1};
constexpr std::chrono::milliseconds kPauseMax{50};

// C++ destroys members in reverse order. So the client is destroyed first, and the owner does not
// wait for it.
struct OwnerAndClient {
  std::unique_ptr<StoreOwner> owner;
  std::unique_ptr<StoreClient> client;
};

std::shared_ptr<LocalStore> store_of(OwnerAndClient owner_and_client) {
  // A shared_ptr, so that the returned Store keeps both parts alive. It has no other owner.
  auto held = std::make_shared<OwnerAndClient>(std::move(owner_and_client));
  return {held, held->client.get()};
}

Result<std::shared_ptr<LocalStore>> become_owner(UnixListener listener, int members) {
  FARANDOLE_TRY_ASSIGN(auto owner, StoreOwner::open(std::move(listener), members));
  FARANDOLE_TRY_ASSIGN(Descriptor own_client, owner->own_client());
  FARANDOLE_TRY_ASSIGN(UnixSocket socket, UnixSocket::adopt(std::move(own_client)));
  FARANDOLE_TRY(owner->start());
  auto client = StoreClient::from_socket(std::move(socket));
  return store_of({std::move(owner), std::move(client)});
}

}  // namespace

Result<std::shared_ptr<LocalStore>> open_named_store(const std::string& name, int members,
                                                     const WaitLimit& limit) {
  for (auto pause = kPauseMin;; pause = std::min(2 * pause, kPauseMax)) {
    auto listener = UnixListener::open(name);
    if (listener.ok()) return become_owner(*std::move(listener), members);
    if (listener.status().code() != StatusCode::kRetry) return listener.status();
    auto socket = UnixListener::connect(name);
    if (socket.ok()) return store_of({nullptr, StoreClient::from_socket(*std::move(socket))});
    if (socket.status().code() != StatusCode::kRetry) return socket.status();
    // Try again after a pause: the owner may be between its bind() and its listen(), may just have
    // closed its listening socket, or may have a full queue.
    FARANDOLE_TRY(check_limit({&name, 1}, limit));
    const auto left = limit.deadline - std::chrono::steady_clock::now();
    const auto longest = std::chrono::ceil<std::chrono::milliseconds>(left);
    ::poll(nullptr, 0, static_cast<int>(std::clamp(longest, kPauseMin, pause).count()));
  }
}

}  // namespace farandole
