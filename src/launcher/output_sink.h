// OutputSink: our own standard output or error, written without ever blocking the launcher's loop.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace farandole {

// One thread.
class OutputSink {
 public:
  // Beyond this the workers should be made to wait.
  static constexpr std::size_t kFullBytes = 1 << 20;

  // Borrows the descriptor.
  explicit OutputSink(int descriptor);

  // What is written to: not the borrowed one if that is a terminal.
  int descriptor() const { return terminal_.valid() ? terminal_.get() : borrowed_; }
  void write(std::string_view bytes);
  // Writes what fits now.
  void flush();

  bool empty() const { return pending_.empty(); }
  bool full() const { return pending_.size() >= kFullBytes; }
  // Nobody reads any more; everything further is dropped.
  bool closed() const { return closed_; }
  // Why something could not be written, as errno says it; 0 if all could, or nobody reads.
  int failure() const { return failure_; }

 private:
  int borrowed_;
  Descriptor terminal_;
  std::string pending_;
  bool closed_ = false;
  int failure_ = 0;  // the disk is full or gone: the job goes on without its output
};

}  // namespace farandole
