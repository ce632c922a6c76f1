// WorkerStream: carries a worker's standard output or error to the launcher. It is a
// pseudo-terminal if the launcher's own stream is a terminal, so that progress bars and colors work
// as usual. Otherwise it is a pipe.
#pragma once

#include <sys/ioctl.h>

#include <cstddef>
#include <string>

#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

struct WorkerStream {
  Descriptor ours;    // the launcher's end; non-blocking
  Descriptor theirs;  // the worker's end; close it when the worker has started

  // Errors: kStop.
  static Result<WorkerStream> make_pipe();
  // A terminal in raw mode, so that output arrives unchanged. worker_window() gives the size.
  static Result<WorkerStream> make_terminal(const winsize& size);
};

// Returns the size of our terminal, minus the columns that the prefix needs. All numbers are 0 if
// the size is unknown.
winsize worker_window(int terminal, int prefix_columns);

void set_window(const Descriptor& ours, const winsize& size);

// The bytes that can be read from a stream without blocking. If `ended`, no more bytes will arrive.
struct StreamRead {
  std::string bytes;
  bool ended = false;
};
StreamRead read_available(const Descriptor& stream);

// Returns how many unread bytes the stream can hold.
std::size_t capacity_of(const Descriptor& stream);

}  // namespace farandole
