// HostCopies: the windows of steps that copy: all-gather, all-to-all, and the copies of a
// GatheredReduction.
//
// In a window, each member stages what it contributes to the chunks of its host's streams, at the
// position of this data in the chunk. Local member k sends slice k of each chunk through lane k,
// straight out of the staging memory of the members that have it. It receives slice k of the other
// hosts' chunks into its own staging memory. As soon as data that stays on the host is staged, the
// members copy it from there. They copy data from other hosts as soon as it is complete.
//
// A member that is alone on its host and has an output needs no staging memory: it sends from its
// input and receives into its output.
//
// Cost, after the 2 waits and the one-way latency of the notes: 2 waits and a one-way latency per
// window, with two windows on the wire. Each byte is on the wire once for each host that gets it. A
// member moves twice what it contributes, to stage it, and twice what it gets. If it is alone on
// its host, it moves only what it sends to itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hosts/notes.h"
#include "hosts/streams.h"

namespace farandole {

// Fills scratch.offsets: where the rows of each member begin, in bytes, in an output that has the
// rows of all members in order. scratch.counts has the number of rows of each member. Returns false
// if a count is negative or a sum overflows.
bool place_rows(StepScratch& scratch, std::int64_t row_bytes);

class HostCopies {
 public:
  struct Streams {
    std::vector<HostStream> outgoing = {};  // by destination host, also ours; or one for all hosts
    std::vector<HostStream> incoming = {};  // by source host; ours is not used
    std::int64_t longest = 0;               // bytes of the longest stream between any two hosts
    // The number of windows; used instead of `longest` if the streams say where chunks end.
    std::int64_t windows = 0;
  };

  // `outgoing_count` is how many streams a host sends: one per host, or one for all. `notes` is
  // borrowed and must outlive this object.
  HostCopies(const HostNotes& notes, int outgoing_count)
      : notes_(&notes),
        layout_(notes, outgoing_count, notes.parts().hosts()),
        lane_(notes.parts()) {}

  // The largest number of bytes that a stream has in a window.
  std::int64_t chunk_bytes() const { return layout_.chunk_bytes(); }
  // Only after all have entered. Returns the number of windows. If the output is null, this member
  // gets no result. The memory is borrowed until the step has ended or, if the step is given up,
  // until the lane has dropped it.
  std::int64_t start(Streams streams, const std::byte* input, std::byte* output);

  // See BasicHostWindows.
  void stage(std::int64_t window) const;
  void begin(std::int64_t window);
  static bool drive() { return false; }
  bool is_complete(std::int64_t window) const;
  void fetch(std::int64_t window) const;

 private:
  const Group& group() const { return notes_->entry_barrier().group(); }
  const HostParts& hosts() const { return notes_->parts(); }
  // The index of our stream to this host.
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
    return input_ + block.input + (part.begin - block.begin);
  }
  std::byte* output_at(const Block& block, StreamRange part) const {
    return output_ + block.output + (part.begin - block.begin);
  }
  void take_local(std::int64_t window) const;
  void send(std::int64_t window, int host);
  void receive(std::int64_t window, int host);

  const HostNotes* notes_;
  WindowLayout layout_;
  LaneStreams lane_;
  Streams streams_;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::array<LaneStreams::Mark, 2> complete_;  // by window modulo 2
};

}  // namespace farandole
