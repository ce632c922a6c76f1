// Stack capture: asks py-spy, a program that users may install, for the Python stack of a worker.
// It runs one py-spy at a time, in a child process, and does not block the launcher's loop.
#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/poller.h"
#include "workers/worker_process.h"

namespace farandole {

// Returns "py-spy" if it is in PATH. Otherwise returns the path of a py-spy in the folder of our
// own program, which may be a virtual environment that is not activated. Empty if py-spy is not
// found.
std::string find_py_spy();

// Only one thread may use it. It starts child processes, which its owner must reap.
class StackCapture {
 public:
  struct CapturedWorker {
    int rank = 0;
    pid_t pid = 0;
  };
  struct CapturedStack {
    CapturedWorker worker;
    std::vector<std::string> lines;  // empty if py-spy failed
    std::string failure;             // why py-spy failed
  };

  // `poller` and `state` must outlive this object. The poller reports our descriptors as `tag`.
  StackCapture(Poller& poller, std::uint64_t tag, const OriginalProcessState& state);

  // Whether py-spy was found.
  bool is_available() const { return !program_.empty(); }
  // Queues a capture. Call it only if is_available().
  void request(const CapturedWorker& worker);
  // Call it when the poller reports our tag, and at the deadline. Returns the stack of a capture
  // that has ended now; empty if none has.
  std::optional<CapturedStack> advance(TimePoint now);
  std::optional<TimePoint> deadline() const;
  // Kills py-spy if it runs. After this call, no py-spy is started.
  void stop();

 private:
  struct RunningCapture {
    CapturedWorker worker;
    Descriptor process;  // pidfd
    Descriptor output;
    std::string text;
    TimePoint deadline;
  };
  void start_next();
  Status start(const CapturedWorker& worker);
  void end_running_capture();

  Poller& poller_;
  std::uint64_t tag_;
  const OriginalProcessState& original_state_;
  std::string program_;
  std::deque<CapturedWorker> queue_;
  std::optional<RunningCapture> running_capture_;
};

}  // namespace farandole
