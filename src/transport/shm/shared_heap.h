// SharedHeap: a worker's memory that its peers on the host can map. It is one sealed memfd segment,
// much larger than the part in use, because only touched pages cost memory. It has no file name, so
// nothing is left after kill −9. PeerHeap: the same memory as mapped by a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "transport/shm/segment.h"

namespace farandole {

inline constexpr std::size_t kHeapAlignment = 128;
// A block of at least this size is large: it begins at a page boundary. A block of at least
// kHugePageBytes begins at a huge page boundary.
inline constexpr std::size_t kLargeBlockBytes = 64 << 10;
// At most this many bytes in freed large blocks keep their pages, to be used again.
inline constexpr std::size_t kWarmBytesMax = 128 << 20;

// Any thread.
class SharedHeap {
 public:
  // Rounds up to whole huge pages. Errors: kStop with the system call, the size and the limit to
  // raise.
  static Result<std::unique_ptr<SharedHeap>> create(std::size_t bytes);
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Allocates zeroed memory, aligned to kHeapAlignment. If the heap is full, it is memory that
  // peers cannot see. The block may outlive the heap: the segment stays mapped until its last block
  // is gone. A forked child sees what its parent writes there, even after the block is gone.
  // Errors: kStop.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // The location by which peers find this memory. Empty if it is not wholly in the segment, or if
  // it was taken back from the peers.
  std::optional<std::uint64_t> location_of(const void* address, std::size_t bytes) const;
  // Takes memory in the segment back from the peers, for good, and with it the rest of its pages.
  // The pages keep their addresses and bytes, but later stores of a peer are lost. No block that
  // overlaps these pages is allocated again. The caller must make sure that no peer still needs to
  // store into other memory of these pages. Other threads may use the memory meanwhile. Errors:
  // kStop.
  Status take_back(std::span<const std::byte> memory);
  // The whole pages that contain this memory.
  static std::span<const std::byte> pages_of(std::span<const std::byte> memory);
  // The segment's descriptor, borrowed, for sending it to peers.
  const Descriptor& segment() const;
  // For the child of a fork: closes the descriptor. Takes no lock and unmaps nothing.
  void abandon_after_fork();

 private:
  struct Pool;
  explicit SharedHeap(std::shared_ptr<Pool> pool);
  std::shared_ptr<Pool> pool_;  // shared with all blocks
};

// A peer's heap, mapped for reading and writing.
class PeerHeap {
 public:
  // Maps the heap of a peer. Errors: kStop if the descriptor is not a sealed memfd.
  static Result<std::unique_ptr<PeerHeap>> attach(const Descriptor& segment);
  PeerHeap(const PeerHeap&) = delete;
  PeerHeap& operator=(const PeerHeap&) = delete;

  // The memory at a location. Null if not all of its bytes lie in the segment.
  std::byte* at(std::uint64_t location, std::size_t bytes) const;

 private:
  explicit PeerHeap(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  std::shared_ptr<Segment> segment_;  // ours alone
};

}  // namespace farandole
