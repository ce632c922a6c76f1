// Watch: sleeps until another member's process ends and closes the epoch then. Death is decided by
// pidfd alone: an end of file proves nothing while a forked data loader may hold the socket.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/log.h"
#include "farandole/status.h"
#include "transport/shm/doorbells.h"

namespace farandole {

class Watch {
 public:
  struct Process {
    int rank;
    int descriptor;  // pidfd, borrowed
  };

  // `doorbells`, `log` and the descriptors outlive this.
  Watch(Doorbells& doorbells, std::vector<Process> processes, const Log& log);
  ~Watch();  // stop()
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Starts the thread "watch". Errors: kStop.
  Status start();
  // Ends it; idempotent.
  void stop();
  // In the child of a fork: closes our descriptors; there is no thread here.
  void abandon_after_fork() {
    stop_event_.reset();
    epoll_.reset();
  }

 private:
  Status add(int descriptor, std::uint32_t what);
  void run();
  void process_ended(int rank);

  Doorbells& doorbells_;
  const Log& log_;
  const std::vector<Process> processes_;
  Descriptor stop_event_;
  Descriptor epoll_;
  std::thread thread_;
};

}  // namespace farandole
