// SharedHeap: a worker's memory that its peers on the host can map. It is one sealed memfd segment.
// The segment is usually much larger than the part in use, because only touched pages use memory.
// It has no file name, so `kill -9` leaves no files behind. PeerHeap is the same memory, mapped by
// a peer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/guarded.h"
#include "farandole/status.h"
#include "transport/shm/arena.h"
#include "transport/shm/segment.h"

namespace farandole {

inline constexpr std::size_t kHeapAlignment = 128;
// A block of at least this size is large: it begins at a page boundary. A block of at least
// kHugePageBytes begins at a huge page boundary.
inline constexpr std::size_t kLargeBlockBytes = 64 << 10;
// Freed large blocks keep their pages for reuse, up to this number of bytes in total.
inline constexpr std::size_t kKeptBytesMax = 128 << 20;

class HeapPin;

// Any thread may call its functions. Its users and all allocated blocks share ownership: the memory
// is freed with the last owner.
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  // Makes a heap of this size, rounded up to whole huge pages. Errors: kStop with the system call,
  // the size and the limit to raise.
  static Result<std::shared_ptr<SharedHeap>> create(std::size_t bytes);
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Allocates zeroed memory, aligned to kHeapAlignment. If the heap is full, allocates memory that
  // peers cannot see. A forked child shares the heap with its parent, and sees what the parent
  // writes into the heap. If the child frees a block, the block stays allocated in the parent.
  // Errors: kStop.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Returns the location by which peers find this memory. Empty if the memory is not completely in
  // the segment, or if a part of the memory is no longer shared.
  std::optional<std::uint64_t> location_of(const void* address, std::size_t bytes) const;
  // Permanently stops sharing all pages of this memory with the peers. The pages keep their
  // addresses and bytes, but later stores of a peer do not reach them. The heap allocates no more
  // blocks in these pages. Other threads may use the memory during this call. Errors: kRetry (a
  // HeapPin holds some of these pages), kStop.
  Status unshare(std::span<const std::byte> memory);
  // Returns the whole pages that contain this memory.
  static std::span<const std::byte> pages_of(std::span<const std::byte> memory);
  // Returns the segment's descriptor, which is borrowed and can be sent to peers.
  const Descriptor& descriptor() const;
  std::size_t size() const { return segment_->size(); }
  // False in a forked child, because the heap and all its blocks belong to the parent.
  bool is_of_this_process() const;
  // For a forked child: closes the descriptor. Takes no lock and keeps the mapping.
  void abandon_after_fork() { segment_->close_descriptor(); }

 private:
  struct Zones {
    Arena small_blocks;
    Arena large_blocks;
  };
  struct NewBlock {
    std::byte* begin = nullptr;  // null if there is no room
    bool is_fresh = false;       // the block has no allocated pages, so it is zero
  };

  explicit SharedHeap(std::shared_ptr<Segment> segment);
  static Zones zones_of(std::byte* begin, std::size_t bytes);
  NewBlock allocate_small(std::size_t bytes);
  NewBlock allocate_large(std::size_t bytes);
  void release(const std::byte* begin);
  void keep_at_most(std::size_t bytes);
  // Returns ok if the host has this much free memory. If not, gives the kept blocks back to the
  // system and checks again.
  Status ensure_room(std::size_t bytes);
  bool is_unshared(std::span<const std::byte> memory) const;
  bool overlaps_heap(std::span<const std::byte> memory) const;

  friend class HeapPin;
  struct SharingState {
    std::vector<std::span<const std::byte>> unshared_pages;
    std::vector<const HeapPin*> pins;
  };

  const std::shared_ptr<Segment> segment_;  // this is the only owner
  const std::size_t kept_bytes_max_;
  const int owner_pid_;
  Guarded<Zones> zones_;
  mutable Guarded<SharingState> sharing_;
  // Whether unshared_pages has entries. It can be read without the lock.
  std::atomic<bool> any_unshared_ = false;
};

// While a running step exposes memory, a HeapPin makes SharedHeap::unshare() of this memory fail.
// Otherwise, stores of a peer into this memory would be lost. Each group has one pin, because a
// group runs one step at a time. Only one thread at a time may use a pin.
class HeapPin {
 public:
  using Memory = std::array<std::span<const std::byte>, 2>;

  explicit HeapPin(SharedHeap& heap);  // `heap` must outlive this object
  ~HeapPin();
  HeapPin(const HeapPin&) = delete;
  HeapPin& operator=(const HeapPin&) = delete;

  // Pins this memory, and unpins the memory that was pinned before. Takes no lock if no memory was
  // pinned and this memory is not in the heap.
  void pin(const Memory& memory);
  void unpin();

 private:
  friend class SharedHeap;
  SharedHeap& heap_;
  Memory pinned_memory_;  // guarded by the lock of the heap's sharing_; only our thread writes it
  bool is_pinned_ = false;
};

// A peer's heap, mapped for reading and writing.
class PeerHeap {
 public:
  // Maps the heap of a peer. Errors: kStop if the descriptor is not a sealed memfd.
  static Result<std::unique_ptr<PeerHeap>> attach(const Descriptor& segment);
  PeerHeap(const PeerHeap&) = delete;
  PeerHeap& operator=(const PeerHeap&) = delete;

  // Returns the memory at a location. Null if the memory is not completely in the segment.
  std::byte* at(std::uint64_t location, std::size_t bytes) const;

 private:
  explicit PeerHeap(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  std::shared_ptr<Segment> segment_;  // this is the only owner
};

}  // namespace farandole
