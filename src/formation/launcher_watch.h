// LauncherWatch: listens to the launcher of an elastic job, and notices the loss of the launcher.
//
// The job must end with the next commit if the launcher sends a notice that says so, or if the
// socket of the launcher ends. The program then saves its state and exits. If the program has not
// exited at the time limit, the watch kills the worker, because the launcher may be lost.
//
// The launcher also sends a notice if a member of this worker's group is lost with its host.
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
  // Starts the thread "farandole-lost". If the worker may outlive its launcher, the kernel no
  // longer kills the worker when the launcher ends. This only works if start() is called in the
  // main thread. Errors: kFixCall if the descriptor is not the launcher's socket, kStop.
  static Result<std::unique_ptr<LauncherWatch>> start(int descriptor);
  // If the job must end, lets the thread run until the process ends. Otherwise ends the thread, and
  // tells the kernel to kill this worker when the launcher ends, as before start().
  ~LauncherWatch();
  LauncherWatch(const LauncherWatch&) = delete;
  LauncherWatch& operator=(const LauncherWatch&) = delete;

  // From now on, the thread "farandole-lost" calls `handler` if the launcher says that a member of
  // this epoch is lost. If the launcher has said this before the call of watch_members(),
  // watch_members() itself calls `handler`. `handler` gets the rank of the member, and must neither
  // block nor allocate memory. An empty `handler` ends the watch; when the function returns, no
  // call of the previous handler is running.
  void watch_members(std::int64_t epoch, std::function<void(int rank)> handler);

  // Returns why the job must end with the next commit; empty if the job goes on. Waits for such an
  // announcement until the deadline.
  std::string announced_end(TimePoint deadline = {});

 private:
  struct State;

  explicit LauncherWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // also owned by the thread, which may outlive this object
  std::thread thread_;
  pid_t process_ = 0;  // the process that has the thread; a forked child has no such thread
};

}  // namespace farandole
