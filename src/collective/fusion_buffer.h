// FusionBuffer: memory in which the tensors of a fused step are contiguous, so that they share one
// transfer. The other members can see this memory, and it is reused from step to step. Tensors that
// are already contiguous and reduced in place are not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/status.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// Only one thread at a time may use it: the holder of the progress lock.
class FusionBuffer {
 public:
  struct Piece {
    const std::byte* input = nullptr;
    std::byte* output = nullptr;  // may equal input
    std::int64_t bytes = 0;
  };

  // `heap` must outlive this object. The memory grows by doubling up to `bytes_max`; a larger step
  // is not expected, but gets exactly the memory that it needs.
  FusionBuffer(SharedHeap& heap, std::size_t bytes_max) : heap_(heap), bytes_max_(bytes_max) {}

  // Begins a step that has no pieces yet. The previous step need not have finished.
  void clear();
  // Adds the next piece. Its memory is borrowed until the step has ended.
  void add(const Piece& piece);
  // Chooses the memory of the step. Call it after all pieces were added. Errors: kStop if the
  // system has no memory.
  Status choose_memory();

  // The input and output of the fused step: bytes() bytes, all pieces in order.
  std::byte* memory() const { return memory_; }
  std::int64_t bytes() const { return bytes_; }
  bool in_place() const { return in_place_; }

  // pack() copies the inputs to memory(); unpack() copies memory() to the outputs. Each call copies
  // a bounded number of bytes, and returns true when everything is copied.
  bool pack() { return copy_chunk(true); }
  bool unpack() { return copy_chunk(false); }

 private:
  bool are_contiguous() const;
  bool copy_chunk(bool packs);

  SharedHeap& heap_;
  std::size_t bytes_max_;
  std::shared_ptr<std::byte> buffer_;  // no other object owns this memory
  std::size_t buffer_bytes_ = 0;
  std::vector<Piece> pieces_;  // all pieces that are not empty
  std::int64_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  bool in_place_ = false;
  std::size_t piece_index_ = 0;     // the index of the piece that is being copied
  std::int64_t copied_bytes_ = 0;   // how many bytes of this piece are copied
  std::int64_t memory_offset_ = 0;  // offset in memory_
};

}  // namespace farandole
