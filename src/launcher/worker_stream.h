// WorkerStream: the way of a worker's standard output or error to us. A pipe; or, if what it ends
// up on is a terminal, a pseudo-terminal, so that progress bars and colors work as they do alone.
#pragma once

#include <sys/ioctl.h>

#include <string>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

struct WorkerStream {
  Descriptor ours;    // read here; non-blocking
  Descriptor theirs;  // the worker's end; close it once the worker has started

  // Errors: kStop.
  static Result<WorkerStream> make_pipe();
  // A raw one: what the worker writes arrives unchanged. `size`: see worker_window().
  static Result<WorkerStream> make_terminal(const winsize& size);
};

// The window of our terminal, less the columns that the prefix takes; zeros if it is not known.
winsize worker_window(int terminal, int prefix_columns);

void set_window(const Descriptor& ours, const winsize& size);

// What can be read from a stream now. `ended`: nothing more will ever come.
struct StreamRead {
  std::string bytes;
  bool ended = false;
};
StreamRead read_available(const Descriptor& stream);

}  // namespace farandole
