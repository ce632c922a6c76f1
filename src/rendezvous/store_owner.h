// StoreOwner: serves the Store of a job inside one of its members, for jobs that another launcher
// started. It is a StoreServer with a thread of its own and a listening socket to which the other
// ranks connect.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"
#include "rendezvous/store_server.h"
#include "transport/unix_listener.h"

namespace farandole {

class StoreOwner {
 public:
  // For a formation of `members` processes, including this one. Errors: kStop.
  static Result<std::unique_ptr<StoreOwner>> open(UnixListener listener, int members);
  // Waits, a few seconds at most, until a formation that has begun is over. In a forked child, it
  // only closes the listening socket.
  ~StoreOwner();
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;

  // Returns a client socket for this process itself. Errors: kStop.
  Result<Descriptor> own_client() { return server_->add_client("the owner itself"); }
  // Starts the thread. Call own_client() first: only one thread at a time may use the server.
  // Errors: kStop.
  Status start();

 private:
  StoreOwner(UnixListener listener, int members, std::unique_ptr<StoreServer> server);
  void serve();
  void serve_once();
  void accept_all();
  Status accept_one();
  void report_failure();
  bool in_formation() const;
  bool may_leave() const;

  UnixListener listener_;
  int missing_ranks_;  // how many ranks have not connected yet
  pid_t owner_pid_;
  std::string failure_;      // why the formation fails; empty if it does not
  bool has_result_ = false;  // the formation has succeeded or failed
  std::unique_ptr<StoreServer> server_;
  Descriptor stop_event_;
  bool stop_requested_ = false;
  TimePoint leave_deadline_{};  // the destructor waits until then
  // A forked child does not touch it, because the thread does not exist there.
  std::unique_ptr<std::thread> thread_;
};

}  // namespace farandole
