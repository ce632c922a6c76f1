// Stack capture: where a worker's Python program is, seen from outside by py-spy, a program that
// users may install. One look at a time, in a child of ours, without blocking the launcher's loop.
#pragma once

#include <sys/types.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "launcher/poller.h"
#include "launcher/worker_process.h"

namespace farandole {

// The py-spy to run: "py-spy" if it is in PATH, else the path of the one beside our own program,
// where it is when its environment is not activated; empty without one.
std::string find_py_spy();

// One thread. What it starts is a child of this process, which has to reap it.
class StackCapture {
 public:
  struct Subject {
    int rank = 0;
    pid_t pid = 0;
  };
  struct Answer {
    Subject subject;
    std::vector<std::string> lines;  // none: it could not look
    std::string failure;             // why
  };

  // `poller` and `state` must outlive this. The poller calls us by `tag`.
  StackCapture(Poller& poller, std::uint64_t tag, const InheritedState& state);

  // Is there a py-spy, beside our own program or in PATH?
  bool possible() const { return !program_.empty(); }
  // Queues a look. Only if it is possible.
  void ask(const Subject& subject);
  // The poller has called, or the deadline has come.
  std::optional<Answer> advance(TimePoint now);
  std::optional<TimePoint> deadline() const;
  // No look any more; a running one is killed.
  void stop();

 private:
  struct Running {
    Subject subject;
    Descriptor process;  // pidfd
    Descriptor output;
    std::string text;
    TimePoint deadline;
  };
  void start_next();
  Status start(const Subject& subject);
  void end_running();

  Poller& poller_;
  std::uint64_t tag_;
  const InheritedState& state_;
  std::string program_;
  std::deque<Subject> waiting_;
  std::optional<Running> running_;
};

}  // namespace farandole
