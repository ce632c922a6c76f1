// FusionBuffer: where the tensors of a fused step lie one after another, so that they share one
// transfer: in memory that the others can see, kept from step to step. Tensors that lie one after
// another anyway, and want their results there, stay where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/status.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// One thread at a time (the holder of the progress lock).
class FusionBuffer {
 public:
  struct Piece {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;  // may equal input
    std::int64_t bytes = 0;
  };

  // `heap` outlives this. Steps of more than `bytes_max` are possible, but none is expected: the
  // memory grows by doubling up to there.
  FusionBuffer(SharedHeap& heap, std::size_t bytes_max) : heap_(heap), bytes_max_(bytes_max) {}

  // A step begins, with no pieces yet; what became of the one before does not matter.
  void clear();
  // The next piece; borrowed until the step is over.
  void add(const Piece& piece);
  // All pieces are there. Errors: kStop when the system has no memory.
  Status settle();

  // Where the step has its input and its output: bytes() bytes, all pieces in order.
  std::byte* memory() const { return memory_; }
  std::int64_t bytes() const { return bytes_; }
  bool in_place() const { return in_place_; }

  // Copies the inputs to, or the outputs from, memory(), a bounded amount of it per call; true when
  // all of it is there.
  bool pack() { return copy_some(true); }
  bool unpack() { return copy_some(false); }

 private:
  bool lie_one_after_another() const;
  bool copy_some(bool in);

  SharedHeap& heap_;
  std::size_t bytes_max_;
  std::shared_ptr<std::byte> owned_;  // ours alone
  std::size_t owned_bytes_ = 0;
  std::vector<Piece> pieces_;  // none is empty
  std::int64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  bool in_place_ = false;
  std::size_t piece_ = 0;      // the next one to be copied
  std::int64_t copied_ = 0;    // bytes of it
  std::int64_t position_ = 0;  // in memory_
};

}  // namespace farandole
