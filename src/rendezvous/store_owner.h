// StoreOwner: serves the Store of a job in one of its members if another launcher started the job.
// It is a StoreServer with a thread of its own and a listening socket through which the other ranks
// connect.
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
  // Waits a few seconds at most for a formation that has begun. In a forked child it only closes
  // the listening socket.
  ~StoreOwner();
  StoreOwner(const StoreOwner&) = delete;
  StoreOwner& operator=(const StoreOwner&) = delete;

  // The socket for this process itself. Errors: kStop.
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
  bool done() const;

  UnixListener listener_;
  int members_;
  int missing_;
  pid_t process_;
  std::string failure_;  // if not empty: why the formation fails
  bool formed_ = false;  // also true if the formation has failed
  std::unique_ptr<StoreServer> server_;
  Descriptor stop_;
  bool stop_asked_ = false;
  TimePoint leave_deadline_{};  // until when the destructor waits
  // a forked child leaves it alone, as the thread does not exist there
  std::unique_ptr<std::thread> thread_;
};

}  // namespace farandole
