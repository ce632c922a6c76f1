// SharedHeap: one worker's memory that its peers on the host can map: one sealed memfd segment, far
// larger than what is used of it, for only touched pages cost memory. It has no name, and nothing
// of it is left after kill −9. PeerHeap: the same memory seen from a peer.
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
// From here on a block is large: it begins at a page, with kHugePageBytes at a huge page.
inline constexpr std::size_t kLargeBlockBytes = 64 << 10;
// Of so many freed bytes in large blocks the pages are kept, to be used again.
inline constexpr std::size_t kWarmBytesMax = 128 << 20;

// Any thread.
class SharedHeap {
 public:
  // In whole huge pages. Errors: kStop naming the system call, the size and the limit to raise.
  static Result<std::unique_ptr<SharedHeap>> create(std::size_t bytes);
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // kHeapAlignment-aligned, zeroed. What does not fit is memory that peers cannot see. The owner
  // may outlive the heap: the segment stays mapped until the last block of it is gone. A forked
  // child sees what its parent writes there, also after the block is gone. Errors: kStop.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Where memory is that lies wholly in the segment, for peers; nothing for any other memory, and
  // for what was taken back from them.
  std::optional<std::uint64_t> location_of(const void* address, std::size_t bytes) const;
  // Takes memory inside the segment back from the peers, for good, with the rest of its pages: they
  // keep their addresses and bytes, but what a peer stores there from now on is lost. A block that
  // overlaps these pages is never allocated again. The caller sees to it that no peer still has to
  // store something else in these pages. Other threads may use the memory meanwhile. Errors: kStop.
  Status take_back(std::span<const std::byte> memory);
  // The whole pages that hold a piece of memory.
  static std::span<const std::byte> pages_of(std::span<const std::byte> memory);
  // To be handed to peers. Borrowed.
  const Descriptor& segment() const;
  // In the child of a fork: closes the descriptor, takes no lock, unmaps nothing.
  void abandon_after_fork();

 private:
  struct Pool;
  explicit SharedHeap(std::shared_ptr<Pool> pool);
  std::shared_ptr<Pool> pool_;  // shared with all blocks
};

// A peer's heap, mapped for reading and writing.
class PeerHeap {
 public:
  // Checks that it is a sealed memfd. Errors: kStop.
  static Result<std::unique_ptr<PeerHeap>> attach(const Descriptor& segment);
  PeerHeap(const PeerHeap&) = delete;
  PeerHeap& operator=(const PeerHeap&) = delete;

  // The bytes at a location; null if they do not all lie in the segment.
  std::byte* at(std::uint64_t location, std::size_t bytes) const;

 private:
  explicit PeerHeap(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  std::shared_ptr<Segment> segment_;  // ours alone
};

}  // namespace farandole
