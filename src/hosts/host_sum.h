// HostSum: reduces the inputs of the members of a host in shared memory. The result is the host
// sum. Operations use this class if the hosts exchange only their host sums. A small host sum
// travels in the note of its host. Larger tensors go through the windows: each member stages its
// input, and local member k reduces slice k of each chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/allreduce.h"
#include "device/cpu/reduce.h"
#include "hosts/notes.h"
#include "hosts/streams.h"

namespace farandole {

// Reduces the inputs in the scratch list. In an Adasum, an input may be a null pointer, which
// stands for an input of zeros. In other reductions, no input may be null.
void reduce_inputs(const Reduction& reduction, const StepScratch& scratch, std::byte* output,
                   std::int64_t bytes);

class HostSum {
 public:
  // Whether the host sum of a tensor of this size travels in the notes. note_sizes() returns the
  // sizes of these notes.
  static bool fits_into_notes(const HostParts& parts, std::int64_t bytes) {
    return bytes <= note_data_bytes_max(parts.hosts());
  }
  static NoteSizes note_sizes(const HostParts& parts, std::int64_t bytes);

  // `notes`, `scratch` and `tensor` must outlive this object. `reduction` is used instead of
  // tensor.reduction.
  HostSum(const HostNotes& notes, StepScratch& scratch, const AllreduceOptions& tensor,
          const Reduction& reduction)
      : notes_(&notes), scratch_(&scratch), tensor_(&tensor), reduction_(reduction) {}

  // An algorithm calls these functions; see HostNotes. If all members of a host have called join(),
  // the note of this host contains zeros.
  std::int64_t publish_input() const;
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;

  // Copies a chunk of the tensor to `offset` in our staging memory. Leaves out the slice that we
  // reduce ourselves, because we read this slice directly from our input. `stream` says where the
  // chunk lies in the tensor. Does nothing if we have joined.
  void stage(const HostStream& stream, StreamRange chunk, StreamRange own_slice,
             std::int64_t offset) const;
  // Reduces our slice over the members of our host that have not joined. All of them must have
  // staged the slice at `offset`. Writes the result to the same place in our staging memory, which
  // no other member reads.
  void reduce_slice(const HostStream& stream, StreamRange slice, std::int64_t offset) const;

  // Returns where a range of a block begins in our input.
  const std::byte* input_at(const Block& block, StreamRange range) const {
    return tensor_->input + block.input_offset + (range.begin - block.begin);
  }

 private:
  const EntryBarrier& entry_barrier() const { return notes_->entry_barrier(); }

  const HostNotes* notes_;
  StepScratch* scratch_;
  const AllreduceOptions* tensor_;
  Reduction reduction_;
};

}  // namespace farandole
