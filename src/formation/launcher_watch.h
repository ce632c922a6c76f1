// LauncherWatch: listens to the launcher of an elastic job, and notices if it is lost.
//
// The launcher says that the job must end with the next commit, or the end of its socket says so.
// The program saves its state and exits. If it has not done so at the limit, the watch kills the
// worker, because nobody else may be left to do it.
//
// The launcher also says that a member of this worker's group is lost with its host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "farandole/status.h"

namespace farandole {

// Any thread may call its functions.
class LauncherWatch {
 public:
  // `descriptor` is FARANDOLE_LAUNCHER_DESCRIPTOR, which is borrowed and marked close-on-exec.
  // Starts the thread "lost". If the worker may outlive its launcher, the kernel no longer kills
  // it when the launcher ends; this works only in the main thread. Errors: kFixCall if the
  // descriptor is not the launcher's socket, kStop.
  static Result<std::unique_ptr<LauncherWatch>> start(int descriptor);
  // Ends the thread, and lets the kernel kill this worker again. If the job must end, the thread
  // goes on to the end of the process.
  ~LauncherWatch();
  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;

  // From now on, the thread "lost" calls `handler` if the launcher says that a member of this epoch
  // is lost. If the launcher has already said so, this function calls `handler` itself, before it
  // returns. `handler` gets the member's rank, and must neither block nor allocate memory. An empty
  // one ends that: no call of the former one is running when the function returns.
  void watch_members(std::int64_t epoch, std::function<void(int rank)> handler);

  // Why the job must end with the next commit; empty: it goes on. Waits for it until the deadline.
  std::string announced_end(TimePoint deadline = {});

 private:
  struct State;

  explicit LauncherWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // also owned by the thread, which may outlive this object
  std::thread thread_;
  pid_t process_ = 0;  // a forked child has no such thread
};

}  // namespace farandole
