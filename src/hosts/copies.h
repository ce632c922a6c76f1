// HostCopies: the windows of steps that copy data: all-gather, all-to-all and GatheredReduction.
//
// In a window, each member stages its contribution to the chunks of its host's streams, at the
// position that the contribution has in the chunk. Local member k sends slice k of each chunk
// through lane k, directly from the staging memory of the members that have the data. The member
// receives slice k of the other hosts' chunks into its own staging memory. The members copy data
// for their own host out of the staging memory as soon as it is staged, and data from other hosts
// as soon as it is complete.
//
// A member that is alone on its host and has an output needs no staging memory: it sends from its
// input and receives into its output.
//
// Cost, after the 2 waits and the one-way latency of the notes: 2 waits and a one-way latency per
// window, with two windows on the wire. Each byte is on the wire once for each host that receives
// it. A member moves 2 bytes for each byte that it stages, and 2 bytes for each byte that it
// receives. If the member is alone on its host, it moves only the data that it sends to itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hosts/notes.h"
#include "hosts/streams.h"

namespace farandole {

// Computes scratch.offsets from scratch.counts, the numbers of the members' rows. In an output with
// the rows of all members in order, the rows of a member begin at its offset in bytes. Returns
// false if a count is negative or a sum overflows.
bool compute_row_offsets(StepScratch& scratch, std::int64_t row_bytes);

class HostCopies {
 public:
  struct Streams {
    std::vector<HostStream> outgoing = {};  // one per destination host, also ours; or one for all
    std::vector<HostStream> incoming = {};  // one per source host; ours is not used
    std::int64_t longest_bytes = 0;         // bytes of the longest stream between any two hosts
    // The number of windows, if the streams define where their chunks end. In this case,
    // `longest_bytes` is not used.
    std::int64_t window_count = 0;
  };

  // `outgoing_count` is the number of streams that a host sends: one per host, or one for all
  // hosts. `notes` is borrowed and must outlive this object.
  HostCopies(const HostNotes& notes, int outgoing_count)
      : notes_(&notes),
        layout_(notes, outgoing_count, notes.parts().hosts()),
        lane_(notes.parts()) {}

  // The largest number of bytes of a stream in a window.
  std::int64_t chunk_bytes() const { return layout_.chunk_bytes(); }
  // Call start() only after all members have entered. Returns the number of windows. If the output
  // is null, this member gets no result. The memory of input and output is borrowed until the step
  // has ended. If the step is given up, the memory stays borrowed until the lane no longer uses it.
  std::int64_t start(Streams streams, const std::byte* input, std::byte* output);

  // These functions implement the algorithm; see BasicHostWindows.
  void stage(std::int64_t window) const;
  void begin(std::int64_t window);
  static bool drive() { return false; }
  bool is_complete(std::int64_t window) const;
  void fetch(std::int64_t window) const;

 private:
  const Group& group() const { return notes_->entry_barrier().group(); }
  const HostParts& parts() const { return notes_->parts(); }
  // Returns the index of our stream to this host.
  int outgoing_index(int host) const { return streams_.outgoing.size() == 1 ? 0 : host; }
  const HostStream& outgoing(int index) const {
    return streams_.outgoing[static_cast<std::size_t>(index)];
  }
  const HostStream& incoming(int host) const {
    return streams_.incoming[static_cast<std::size_t>(host)];
  }
  bool skips_staging() const { return group().members() == 1 && output_ != nullptr; }
  const std::byte* staging(int member) const { return notes_->entry_barrier().staging(member); }
  const std::byte* input_at(const Block& block, StreamRange part) const {
    return input_ + block.input_offset + (part.begin - block.begin);
  }
  std::byte* output_at(const Block& block, StreamRange part) const {
    return output_ + block.output_offset + (part.begin - block.begin);
  }
  void copy_from_own_host(std::int64_t window) const;
  void send(std::int64_t window, int host);
  void receive(std::int64_t window, int host);

  const HostNotes* notes_;
  WindowLayout layout_;
  LaneStreams lane_;
  Streams streams_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::array<LaneStreams::Mark, 2> complete_marks_;  // by window modulo 2
};

}  // namespace farandole
