// StoreKeeper: the Store of a job that has no launcher of ours, in one of its members: a
// StoreServer with a thread, and a door through which the others come.
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

class StoreKeeper {
 public:
  // For the formation of `members`, the keeper's own process included. Errors: kStop.
  static Result<std::unique_ptr<StoreKeeper>> open(UnixListener door, int members);
  // Lets a formation that has begun come to its end, for some seconds at most. In a forked child it
  // only closes the door.
  ~StoreKeeper();
  StoreKeeper(const StoreKeeper&) = delete;
  StoreKeeper& operator=(const StoreKeeper&) = delete;

  // The own process's end. Errors: kStop.
  Result<Descriptor> own_client() { return server_->add_client("the keeper itself"); }
  // After own_client(): the server is for one thread at a time. Errors: kStop.
  Status start();

 private:
  StoreKeeper(UnixListener door, int members, std::unique_ptr<StoreServer> server);
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
  std::string lost_;     // why the formation cannot be: who has gone first
  bool formed_ = false;  // or it is known why not
  std::unique_ptr<StoreServer> server_;
  Descriptor stop_;
  bool stop_asked_ = false;
  TimePoint farewell_{};                 // once it has been
  std::unique_ptr<std::thread> thread_;  // left alone in a forked child, where it does not exist
};

}  // namespace farandole
