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

// The shortest and the longest pause between two attempts to find the owner. The first pauses are
// short, because most ranks start at nearly the same time.
constexpr std::chrono::milliseconds kPauseMin{1};
constexpr std::chrono::milliseconds kPauseMax{50};

}  // namespace

Result<std::shared_ptr<LocalStore>> open_named_store(const std::string& name, int members,
                                                     const WaitLimit& limit) {
  for (auto pause = kPauseMin;; pause = std::min(2 * pause, kPauseMax)) {
    auto listener = UnixListener::open(name);
    if (listener.ok()) {
      FARANDOLE_TRY_ASSIGN(auto owner, StoreOwner::open(*std::move(listener), members));
      return start_and_connect(std::move(owner));
    }
    if (listener.status().code() != StatusCode::kRetry) return listener.status();
    auto socket = UnixListener::connect(name);
    if (socket.ok()) return {StoreClient::from_socket(*std::move(socket))};
    if (socket.status().code() != StatusCode::kRetry) return socket.status();
    // Try again after a pause. The owner may be between bind() and listen(), may just have closed
    // its listening socket, or may have a full queue.
    FARANDOLE_TRY(check_limit({&name, 1}, limit));
    const auto time_left = limit.deadline - std::chrono::steady_clock::now();
    const auto longest_pause = std::chrono::ceil<std::chrono::milliseconds>(time_left);
    ::poll(nullptr, 0, static_cast<int>(std::clamp(longest_pause, kPauseMin, pause).count()));
  }
}

}  // namespace farandole
