// StoreOwner: serves a Store of a job in one of the job's ranks, if a launcher other than
// `farandole run` has started the ranks. It is a StoreServer with its own thread and a listening
// socket, to which the other ranks of this host or of all hosts connect.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"
#include "network/tcp/tls_session.h"
#include "rendezvous/local_store.h"
#include "rendezvous/store_listener.h"
#include "rendezvous/store_server.h"
#include "transport/unix_listener.h"

namespace farandole {

class StoreOwner {
 public:
  // Serves one formation of `members` processes of this host, including this process. Errors:
  // kStop.
  static Result<std::unique_ptr<StoreOwner>> open(UnixListener listener, int members);
  // Serves all formations of a job over several hosts. Each formation has its own prefix (see
  // PrefixedStore). `options` have the addresses and the port. Errors: as TcpListener::open().
  static Result<std::unique_ptr<StoreOwner>> open(std::shared_ptr<const TlsContext> context,
                                                  const ListenOptions& options);
  // Waits until a running formation is over, but only for a few seconds. In a forked child, only
  // closes the listening socket.
  ~StoreOwner();
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;

  // Returns a client socket for this process itself. Errors: kStop.
  Result<Descriptor> own_client() {
    return server_->add_client(host_listener_ ? "rank 0" : "the owner itself");
  }
  // Starts the thread. Call own_client() first: only one thread at a time may use the server.
  // Errors: kStop.
  Status start();

 private:
  explicit StoreOwner(std::unique_ptr<StoreServer> server);
  static Result<std::unique_ptr<StoreOwner>> create();
  void serve();
  void serve_once();
  void accept_all();
  Status accept_one();
  void report_failure();
  void publish_whether_alone();
  void fail_formations_of(const std::string& client, const std::vector<std::string>& keys);
  bool is_in_formation() const;
  bool may_leave() const;

  std::optional<UnixListener> listener_;  // for the ranks of this host
  int missing_ranks_ = 0;  // the number of ranks of this host that have not connected yet
  std::shared_ptr<const TlsContext> context_;  // also owned by connections of the process
  pid_t owner_pid_;
  std::string failure_;      // why the formation fails; empty if it does not fail
  bool has_result_ = false;  // whether the formation has succeeded or failed
  bool is_alone_ = false;    // whether no other rank is connected
  // After start(), only the thread uses these two objects. It destroys them if memory runs out.
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreListener> host_listener_;  // for the ranks of all hosts
  Descriptor stop_event_;
  bool stop_requested_ = false;
  TimePoint leave_deadline_{};  // the destructor waits for the other ranks until this time
  // A forked child must not touch this object, because the thread does not exist in the child.
  std::unique_ptr<std::thread> thread_;
};

// Starts the owner, and returns a Store for this process. The Store keeps the owner alive; its
// destructor waits for the other ranks like ~StoreOwner(). Errors: kStop.
Result<std::shared_ptr<LocalStore>> start_and_connect(std::unique_ptr<StoreOwner> owner);

}  // namespace farandole
