// SharedHeap: one worker's memory that its peers on the host can map. Sealed memfd segments: no
// names, nothing left behind after kill −9. PeerHeap: the same memory seen from a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "transport/shm/segment.h"

namespace farandole {

inline constexpr std::size_t kHeapAlignment = 128;
// Pages cost nothing until they are touched.
inline constexpr std::size_t kGrowthBytes = 64 << 20;
inline constexpr std::size_t kFirstSegmentBytes = kGrowthBytes;

// Any thread. Growth is a new segment that peers do not map yet: it counts as ordinary memory
// until all of them have acknowledged it (which comes with the in-place algorithms).
class SharedHeap {
 public:
  // Errors: kStop naming the system call, the size and the limit to raise.
  static Result<std::unique_ptr<SharedHeap>> create();
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // kHeapAlignment-aligned, zeroed. The owner may outlive the heap: the segment stays mapped until
  // the last block of it is gone. Errors: kStop.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Where memory is that lies wholly in the first segment, for peers; nothing for any other memory.
  std::optional<std::uint64_t> location_of(const void* address, std::size_t bytes) const;
  // The first segment, to be handed to peers. Borrowed.
  const Descriptor& first_segment() const;
  // In the child of a fork: closes the descriptors, takes no lock, unmaps nothing.
  void abandon_after_fork();

 private:
  struct Parts;
  explicit SharedHeap(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// The first segment of a peer's heap, mapped for reading and writing.
class PeerHeap {
 public:
  // Checks that it is a sealed memfd of the expected size. Errors: kStop.
  static Result<std::unique_ptr<PeerHeap>> attach(const Descriptor& first_segment);
  PeerHeap(const PeerHeap&) = delete;
  PeerHeap& operator=(const PeerHeap&) = delete;

  // The bytes at a location; null if they do not all lie in the segment.
  std::byte* at(std::uint64_t location, std::size_t bytes) const;

 private:
  explicit PeerHeap(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  std::shared_ptr<Segment> segment_;  // ours alone
};

}  // namespace farandole
