#include "transport/shm/shared_heap.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/guarded.h"
#include "base/try.h"
#include "transport/shm/arena.h"

namespace farandole {
namespace {

constexpr std::size_t kPageBytes = 4096;
// A sixteenth of the heap is for small blocks, whose pages stay. So free memory for large blocks is
// always zeroed or a kept block. Kept blocks also take at most a sixteenth.
constexpr std::size_t kPart = 16;

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
}

struct Zones {
  Arena small;
  Arena large;
};

Zones zones_of(std::byte* begin, std::size_t bytes) {
  const std::size_t small = rounded(bytes / kPart, kHugePageBytes);
  return {Arena({begin, small}), Arena({begin + small, bytes - small})};
}

// Allocates ordinary memory, which peers cannot see, if the heap has no room.
Result<std::shared_ptr<std::byte>> allocate_private(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return Status::stop(
        fmt::format("{} bytes cannot be allocated: {} (raise `ulimit -v`, or use "
                    "less memory)",
                    bytes, std::strerror(errno)));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [bytes](std::byte* begin) { ::munmap(begin, bytes); });
}

}  // namespace

// Shared by the heap and all blocks, so that blocks may outlive the heap.
struct SharedHeap::Pool {
  explicit Pool(std::shared_ptr<Segment> whole)
      : segment(std::move(whole)),
        kept_bytes_max(std::min(kWarmBytesMax, segment->size() / kPart)),
        zones(zones_of(segment->data(), segment->size())) {}

  struct Taken {
    std::byte* begin = nullptr;  // null: there is no room
    bool is_fresh = false;       // zeroed, and no page of it has been touched
  };

  Taken take_small(std::size_t bytes) {
    return {zones.lock()->small.take(rounded(bytes, kHeapAlignment), kHeapAlignment), false};
  }

  Taken take_large(std::size_t bytes) {
    const std::size_t alignment = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
    if (auto* const kept = zones.lock()->large.take_kept(bytes)) return {kept, false};
    if (auto* const fresh = zones.lock()->large.take(bytes, alignment)) return {fresh, true};
    keep_at_most(0);
    return {zones.lock()->large.take(bytes, alignment), true};
  }

  void give_back(const std::byte* begin) {
    // In the child of a fork, the lock may be held by a thread that does not exist there.
    if (abandoned.load(std::memory_order_relaxed)) return;
    {
      auto both = zones.lock();
      Arena& arena = both->small.holds(begin) ? both->small : both->large;
      // Memory that was taken back from the peers is never used again, because a new block there
      // must be visible to them.
      if (some_taken_back && is_taken_back({begin, arena.bytes_of(begin)})) return;
      if (&arena == &both->small) return arena.give_back(begin);
      arena.keep(begin);
    }
    keep_at_most(kept_bytes_max);
  }

  // Does not hold the lock while the system takes the pages, so that other threads may allocate.
  void keep_at_most(std::size_t bytes) {
    while (true) {
      std::span<std::byte> leaving;
      {
        auto both = zones.lock();
        if (both->large.kept_bytes() <= bytes) return;
        leaving = both->large.take_oldest_kept();
      }
      segment->discard(leaving.data(), leaving.size());
      zones.lock()->large.give_back(leaving.data());
    }
  }

  bool is_taken_back(std::span<const std::byte> memory) {
    auto ranges = taken_back.lock();
    return std::ranges::any_of(*ranges, [&](std::span<const std::byte> range) {
      return memory.data() < range.data() + range.size() &&
             range.data() < memory.data() + memory.size();
    });
  }

  const std::shared_ptr<Segment> segment;  // ours alone
  const std::size_t kept_bytes_max;
  Guarded<Zones> zones;
  Guarded<std::vector<std::span<const std::byte>>>
      taken_back;                             // taken back from the peers, in whole pages
  std::atomic<bool> some_taken_back = false;  // so that the usual check needs no lock
  std::atomic<bool> abandoned = false;
};

SharedHeap::SharedHeap(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
// Blocks may live on, but the descriptor is no longer needed.
SharedHeap::~SharedHeap() { pool_->segment->close_descriptor(); }

Result<std::unique_ptr<SharedHeap>> SharedHeap::create(std::size_t bytes) {
  FARANDOLE_TRY_ASSIGN(auto segment,
                       Segment::create("farandole-heap", rounded(bytes, kHugePageBytes)));
  segment->leave_out_of_core_dumps();
  return std::unique_ptr<SharedHeap>(new SharedHeap(std::make_shared<Pool>(std::move(segment))));
}

Result<std::shared_ptr<std::byte>> SharedHeap::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes, bytes < kLargeBlockBytes ? kHeapAlignment : kPageBytes);
  if (size < bytes) return Status::stop(fmt::format("{} bytes cannot be allocated", bytes));
  Pool::Taken taken;
  if (bytes < kLargeBlockBytes) taken = pool_->take_small(size);
  const std::size_t pages = rounded(bytes, kPageBytes);
  if (taken.begin == nullptr) taken = pool_->take_large(pages);
  if (taken.begin == nullptr) return allocate_private(pages);
  std::shared_ptr<std::byte> block(taken.begin,
                                   [pool = pool_](std::byte* begin) { pool->give_back(begin); });
  if (taken.is_fresh)
    pool_->segment->take_huge_pages(taken.begin, pages);
  else
    std::memset(taken.begin, 0, bytes);
  return block;
}

std::optional<std::uint64_t> SharedHeap::location_of(const void* address, std::size_t bytes) const {
  const Segment& segment = *pool_->segment;
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < segment.data() || byte > segment.data() + segment.size()) return std::nullopt;
  const auto location = static_cast<std::size_t>(byte - segment.data());
  if (bytes > segment.size() - location) return std::nullopt;
  if (pool_->some_taken_back && pool_->is_taken_back({byte, bytes})) return std::nullopt;
  return location;
}

std::span<const std::byte> SharedHeap::pages_of(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t before = address % kPageBytes;
  return {memory.data() - before, rounded(before + memory.size(), kPageBytes)};
}

Status SharedHeap::take_back(std::span<const std::byte> memory) {
  CHECK(pool_->segment->data() <= memory.data() &&
            memory.data() + memory.size() <= pool_->segment->data() + pool_->segment->size(),
        "only memory of the heap is seen by peers");
  const auto pages = pages_of(memory);
  pool_->taken_back.lock()->push_back(pages);
  pool_->some_taken_back = true;
  return pool_->segment->make_private(const_cast<std::byte*>(pages.data()), pages.size());
}

const Descriptor& SharedHeap::segment() const { return pool_->segment->descriptor(); }

void SharedHeap::abandon_after_fork() {
  pool_->abandoned.store(true, std::memory_order_relaxed);
  pool_->segment->close_descriptor();
}

Result<std::unique_ptr<PeerHeap>> PeerHeap::attach(const Descriptor& segment) {
  FARANDOLE_TRY_ASSIGN(auto whole, Segment::attach(segment));
  whole->leave_out_of_core_dumps();
  return std::unique_ptr<PeerHeap>(new PeerHeap(std::move(whole)));
}

std::byte* PeerHeap::at(std::uint64_t location, std::size_t bytes) const {
  if (location > segment_->size() || bytes > segment_->size() - location) return nullptr;
  return segment_->data() + location;
}

}  // namespace farandole
