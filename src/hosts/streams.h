// The streams of bytes between two hosts in one step, and their division into windows. A stream is
// a list of blocks in an order that both hosts compute from the notes. Window w is the w-th chunk
// of every stream, and lane k carries slice k of each chunk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/lane.h"
#include "collective/staging.h"
#include "hosts/notes.h"

namespace farandole {

struct StreamRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t bytes() const { return end - begin; }
};

// If Block::sender or Block::receiver has this value, it stands for all members of the host.
inline constexpr int kAllOfHost = -1;

// Bytes that go from one member to another. Members are indices in their host parts.
struct Block {
  // kAllOfHost: the block holds the reduced inputs of the members of the sending host.
  int sender = kAllOfHost;
  int receiver = kAllOfHost;
  std::int64_t bytes = 0;
  std::int64_t input_offset = 0;   // where the block begins in the input
  std::int64_t output_offset = 0;  // where the block begins in the output of a member that gets it
  std::int64_t begin = 0;          // where the block begins in the stream; set by add()

  bool is_for(int member) const { return receiver == member || receiver == kAllOfHost; }
};

class HostStream {
 public:
  void add(Block block) {
    if (block.bytes == 0) return;
    block.begin = bytes_;
    bytes_ += block.bytes;
    blocks_.push_back(block);
  }
  std::int64_t bytes() const { return bytes_; }
  // Ends the chunk of the current window. The chunk must fit into a window. If end_chunk() is never
  // called for a stream, all its chunks have the same size.
  void end_chunk() { chunk_ends_.push_back(bytes_); }
  StreamRange chunk(std::int64_t window, std::int64_t equal_bytes) const {
    if (chunk_ends_.empty())
      return {std::min(window * equal_bytes, bytes_), std::min((window + 1) * equal_bytes, bytes_)};
    const auto index = static_cast<std::size_t>(window);
    return {index == 0 ? 0 : chunk_ends_[index - 1], chunk_ends_[index]};
  }

  // Calls visit(block, part) for all blocks that overlap the range, in order. `part` is the
  // overlap, in positions of the stream.
  template <class Visit>
  void visit(StreamRange range, const Visit& visit) const {
    auto block = std::upper_bound(
        blocks_.begin(), blocks_.end(), range.begin,
        [](std::int64_t position, const Block& later) { return position < later.begin; });
    if (block != blocks_.begin()) --block;
    for (; block != blocks_.end() && block->begin < range.end; ++block) {
      const StreamRange part = {std::max(range.begin, block->begin),
                                std::min(range.end, block->begin + block->bytes)};
      if (part.bytes() > 0) visit(*block, part);
    }
  }

 private:
  std::vector<Block> blocks_;
  std::vector<std::int64_t> chunk_ends_;
  std::int64_t bytes_ = 0;
};

// The layout of the windows in the staging memory after the notes. Each half of this memory has the
// chunks that the member publishes, followed by the slices that the member receives or reduces. All
// hosts compute the same sizes.
class WindowLayout {
 public:
  // The largest number of bytes that a stream has in a window; more would not fit into the caches.
  static constexpr std::int64_t kChunkBytesMax = 512 * 1024;
  // The largest number of bytes that each of several lanes sends to all other hosts in one phase of
  // a window. With more bytes, the bursts of several hosts meet at one host, and the other hosts
  // wait for this host. docs/performance.md has the measurement.
  static constexpr std::int64_t kLaneBytesMax = 128 * 1024;
  // Even with many hosts, a lane may send this many bytes to each host: the largest TLS record.
  // Each message costs time, even if it is small.
  static constexpr std::int64_t kSliceBytesMin = 16 * 1024;

  WindowLayout(const HostNotes& notes, int chunks, int slices);

  std::int64_t chunk_bytes() const { return chunk_bytes_; }
  std::int64_t slice_bytes() const { return slice_bytes_; }
  std::int64_t windows_for(std::int64_t stream_bytes) const {
    return rounds_for(stream_bytes, chunk_bytes_);
  }
  StreamRange chunk(const HostStream& stream, std::int64_t window) const {
    return stream.chunk(window, chunk_bytes_);
  }
  // The slice of a chunk that a lane carries.
  StreamRange slice(StreamRange chunk, int lane) const {
    const std::int64_t full_slice_bytes =
        round_up(rounds_for(chunk.bytes(), lanes_), kPieceAlignment);
    return {std::min(chunk.begin + lane * full_slice_bytes, chunk.end),
            std::min(chunk.begin + (lane + 1) * full_slice_bytes, chunk.end)};
  }
  StreamRange slice(const HostStream& stream, std::int64_t window, int lane) const {
    return slice(chunk(stream, window), lane);
  }
  // Offsets in the staging memory.
  std::int64_t chunk_offset(std::int64_t window, int index) const {
    return begin_offset_ + window % 2 * half_bytes_ + index * chunk_bytes_;
  }
  std::int64_t slice_offset(std::int64_t window, int index) const {
    return chunk_offset(window, chunk_count_) + index * slice_bytes_;
  }

  // Whether this many chunks and slices fit into the staging memory after notes of this size.
  static bool fits(std::int64_t notes_bytes, const HostParts& parts, int chunks, int slices) {
    return chunk_bytes_for(half_bytes_after(notes_bytes), parts, chunks, slices) > 0;
  }

 private:
  static std::int64_t half_bytes_after(std::int64_t notes_bytes) {
    return (static_cast<std::int64_t>(kStagingBytesPerSlot) - notes_bytes) / 2;
  }
  static std::int64_t chunk_bytes_for(std::int64_t half_bytes, const HostParts& parts,
                                      std::int64_t chunks, std::int64_t slices);

  std::int64_t begin_offset_;
  std::int64_t half_bytes_;
  int lanes_;
  int chunk_count_;
  std::int64_t chunk_bytes_;
  std::int64_t slice_bytes_;
};

// The streams of our lane. On a member without a lane, the object does nothing.
class LaneStreams {
 public:
  // A position in the streams to and from each other host, in bytes since the beginning of the
  // step.
  struct Mark {
    std::vector<std::uint64_t> sent;
    std::vector<std::uint64_t> received;
  };

  explicit LaneStreams(const HostParts& parts);

  bool has_lane() const { return lane_ != nullptr; }
  void begin(const StepIdentity& identity) { lane_->begin(identity); }
  void send(int host, const std::byte* from, std::int64_t bytes);
  void receive(int host, std::byte* into, std::int64_t bytes);
  // Returns the position after all bytes that were passed to send() and receive() so far.
  const Mark& mark() const { return queued_mark_; }
  bool has_sent(const Mark& mark) const;
  bool has_received(const Mark& mark) const;
  // Returns how many bytes of the stream from a host are still missing before `mark`.
  std::int64_t bytes_missing(const Mark& mark, int host) const;

 private:
  Lane* lane_;
  Mark queued_mark_;
};

}  // namespace farandole
