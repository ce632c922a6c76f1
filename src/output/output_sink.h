// OutputSink: writes to our own standard output or error without blocking the launcher's loop.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace farandole {

// Only one thread may use it.
class OutputSink {
 public:
  // If this many bytes are waiting to be written, the caller must stop reading from the workers.
  static constexpr std::size_t kPendingBytesMax = 1 << 20;

  // The descriptor is borrowed.
  explicit OutputSink(int descriptor);

  // The descriptor to which we write. For a terminal, this is a descriptor of our own instead of
  // the borrowed one.
  int descriptor() const {
    return own_terminal_.valid() ? own_terminal_.get() : borrowed_descriptor_;
  }
  // If `drops_when_full`, drops `bytes` while too many bytes are waiting.
  void write(std::string_view bytes, bool drops_when_full = false);
  // Writes as much as is possible without blocking.
  void flush();

  bool empty() const { return pending_.empty(); }
  bool full() const { return pending_.size() >= kPendingBytesMax; }
  // True if the reader is gone. All further output is dropped.
  bool is_closed() const { return closed_; }
  // The errno of a failed write. 0 if no write has failed, or if only the reader is gone.
  int failure() const { return failure_; }

 private:
  int borrowed_descriptor_;
  Descriptor own_terminal_;
  std::string pending_;
  bool closed_ = false;
  int failure_ = 0;  // such as ENOSPC if the disk is full; the job continues without this output
};

}  // namespace farandole
