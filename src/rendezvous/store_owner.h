// StoreOwner: keeps the Store of a job in one of its members if another launcher started the job.
// It is a StoreServer with a thread and a listening socket through which the others connect.
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
  static Result<std::unique_ptr<StoreOwner>> open(UnixListener door, int members);
  // Waits until a formation that has begun has finished, for some seconds at most. In a forked
  // child it only closes the listening socket.
  ~StoreOwner();
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;

  // The socket for this process itself. Errors: kStop.
  Result<Descriptor> own_client() { return server_->add_client("the owner itself"); }
  // Starts the thread. Call own_client() first: only one thread at a time may use the server.
  // Errors: kStop.
  Status start();

 private:
  StoreOwner(UnixListener door, int members, std::unique_ptr<StoreServer> server);
  void serve();
  void serve_once();
  void let_in();
  Status let_one_in();
  void tell_of_the_lost();
  bool in_formation() const;
  bool done() const;

  UnixListener door_;
  int members_;
  int missing_;
  pid_t process_;
  std::string lost_;     // if not empty: the rank that went too early, so the formation fails
  bool formed_ = false;  // also true if the formation has failed
  std::unique_ptr<StoreServer> server_;
  Descriptor stop_;
  bool stop_asked_ = false;
  TimePoint exit_reported_{};  // the limit for waiting, once the destructor runs
  // a forked child leaves it alone, as the thread does not exist there
  std::unique_ptr<std::thread> thread_;
};

}  // namespace farandole
