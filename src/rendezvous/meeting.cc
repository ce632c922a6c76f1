#include "rendezvous/meeting.h"

#include <sched.h>

#include <utility>

#include "base/try.h"
#include "rendezvous/store_client.h"
#include "rendezvous/store_keeper.h"
#include "rendezvous/waiting.h"
#include "transport/unix_listener.h"

namespace farandole {
namespace {

// The client goes first, so that its keeper does not wait for it.
struct Attendance {
  std::unique_ptr<StoreKeeper> keeper;
  std::unique_ptr<StoreClient> client;
};

std::shared_ptr<Store> store_of(Attendance attendance) {
  // Shared by nobody: it is the only way to hold on to both by the Store.
  auto held = std::make_shared<Attendance>(std::move(attendance));
  return {held, held->client.get()};
}

Result<std::shared_ptr<Store>> keep(UnixListener door, int members) {
  FARANDOLE_TRY_ASSIGN(auto keeper, StoreKeeper::open(std::move(door), members));
  FARANDOLE_TRY_ASSIGN(Descriptor own, keeper->own_client());
  FARANDOLE_TRY_ASSIGN(UnixSocket socket, UnixSocket::adopt(std::move(own)));
  FARANDOLE_TRY(keeper->start());
  auto client = StoreClient::over(std::move(socket));
  return store_of({std::move(keeper), std::move(client)});
}

}  // namespace

Result<std::shared_ptr<Store>> meet(const std::string& name, int members, const WaitLimit& limit) {
  for (;;) {
    auto door = UnixListener::open(name);
    if (door.ok()) return keep(*std::move(door), members);
    if (door.status().code() != StatusCode::kRetry) return door.status();
    auto socket = UnixListener::visit(name);
    if (socket.ok()) return store_of({nullptr, StoreClient::over(*std::move(socket))});
    if (socket.status().code() != StatusCode::kRetry) return socket.status();
    // The first one is just between its bind() and its listen(), or has just gone.
    FARANDOLE_TRY(wait_is_over(name, limit));
    ::sched_yield();
  }
}

}  // namespace farandole
