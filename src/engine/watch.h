// Watch: waits until the process of another rank ends. If that rank had not left the job before,
// closes the epoch. It uses pidfds, because a socket would not show the death: a forked child of
// that process (such as a data loader) may keep the socket open.
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

  // `doorbells`, `log` and the descriptors must outlive this object.
  Watch(Doorbells& doorbells, std::vector<Process> processes, const Log& log);
  ~Watch();  // calls stop()
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Starts the thread "watch". Errors: kStop.
  Status start();
  // Ends the thread; idempotent.
  void stop();
  // For a forked child, in which the thread "watch" does not exist: closes this object's
  // descriptors.
  void abandon_after_fork() {
    stop_event_.reset();
    epoll_.reset();
  }

 private:
  Status watch_descriptor(int descriptor, std::uint32_t data);
  void run();
  void handle_ended_process(int rank);

  Doorbells& doorbells_;
  const Log& log_;
  const std::vector<Process> processes_;
  Descriptor stop_event_;
  Descriptor epoll_;
  std::thread thread_;
};

}  // namespace farandole
