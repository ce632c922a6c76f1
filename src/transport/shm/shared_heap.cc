#include "transport/shm/shared_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "transport/shm/available_memory.h"

namespace farandole {
namespace {

constexpr std::size_t kPageBytes = 4096;
// A sixteenth of the heap is for small blocks, which keep their pages when they are freed. Large
// blocks are in the other zone. The free memory of the large zone has been given back to the
// system, so it is always zero. Freed large blocks that keep their pages take at most a sixteenth
// of the heap, too.
constexpr std::size_t kZoneDivisor = 16;

// Before a block of at least this size takes pages, the heap checks that the host has enough
// memory. A larger block takes its pages in portions of this size, with a check before each
// portion. There are two reasons: another rank may take memory after the first check, and the
// kernel delivers signals only between portions.
constexpr std::size_t kPortionBytes = 256 << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
}

bool do_overlap(std::span<const std::byte> first, std::span<const std::byte> second) {
  return first.data() < second.data() + second.size() &&
         second.data() < first.data() + first.size();
}

// Allocates ordinary memory, which peers cannot see.
Result<std::shared_ptr<std::byte>> allocate_private(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return Status::stop(
        format_text("{} bytes cannot be allocated: {} (raise `ulimit -v`, or use "
                    "less memory)",
                    bytes, std::strerror(errno)));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [bytes](std::byte* begin) { ::munmap(begin, bytes); });
}

}  // namespace

SharedHeap::SharedHeap(std::shared_ptr<Segment> segment)
    : segment_(std::move(segment)),
      kept_bytes_max_(std::min(kKeptBytesMax, segment_->size() / kZoneDivisor)),
      owner_pid_(::getpid()),
      zones_(zones_of(segment_->data(), segment_->size())) {}

SharedHeap::Zones SharedHeap::zones_of(std::byte* begin, std::size_t bytes) {
  const std::size_t small_bytes = rounded_up(bytes / kZoneDivisor, kHugePageBytes);
  return {Arena({begin, small_bytes}), Arena({begin + small_bytes, bytes - small_bytes})};
}

Result<std::shared_ptr<SharedHeap>> SharedHeap::create(std::size_t bytes) {
  FARANDOLE_TRY_ASSIGN(auto segment,
                       Segment::create("farandole-heap", rounded_up(bytes, kHugePageBytes)));
  segment->exclude_from_core_dumps();
  return std::shared_ptr<SharedHeap>(new SharedHeap(std::move(segment)));
}

bool SharedHeap::is_of_this_process() const { return ::getpid() == owner_pid_; }

SharedHeap::NewBlock SharedHeap::allocate_small(std::size_t bytes) {
  return {zones_.lock()->small_blocks.allocate(rounded_up(bytes, kHeapAlignment), kHeapAlignment),
          false};
}

SharedHeap::NewBlock SharedHeap::allocate_large(std::size_t bytes) {
  const std::size_t alignment = bytes < kHugePageBytes ? kPageBytes : kHugePageBytes;
  if (auto* const kept_block = zones_.lock()->large_blocks.reuse_kept(bytes))
    return {kept_block, false};
  if (auto* const fresh_block = zones_.lock()->large_blocks.allocate(bytes, alignment))
    return {fresh_block, true};
  keep_at_most(0);
  return {zones_.lock()->large_blocks.allocate(bytes, alignment), true};
}

void SharedHeap::release(const std::byte* begin) {
  // In a forked child, only return: a thread that exists only in the parent may hold the lock, and
  // discarding pages would discard the parent's pages.
  if (!is_of_this_process()) return;
  {
    auto zones = zones_.lock();
    Arena& arena = zones->small_blocks.holds(begin) ? zones->small_blocks : zones->large_blocks;
    // Memory that is no longer shared is never allocated again, because peers could not see a new
    // block there.
    if (any_unshared_ && is_unshared({begin, arena.bytes_of(begin)})) return;
    if (&arena == &zones->small_blocks) return arena.release(begin);
    arena.keep(begin);
  }
  keep_at_most(kept_bytes_max_);
}

// Discards pages without holding the lock, so that other threads can allocate at the same time.
void SharedHeap::keep_at_most(std::size_t bytes) {
  while (true) {
    std::span<std::byte> evicted;
    {
      auto zones = zones_.lock();
      if (zones->large_blocks.kept_bytes() <= bytes) return;
      evicted = zones->large_blocks.evict_oldest_kept();
    }
    segment_->discard(evicted.data(), evicted.size());
    zones_.lock()->large_blocks.release(evicted.data());
  }
}

bool SharedHeap::is_unshared(std::span<const std::byte> memory) const {
  auto sharing = sharing_.lock();
  return std::ranges::any_of(sharing->unshared_pages,
                             [&](const auto& range) { return do_overlap(range, memory); });
}

Status SharedHeap::ensure_room(std::size_t bytes) {
  if (check_memory(bytes, available_memory()).ok()) return {};
  keep_at_most(0);  // the system counts the pages of kept blocks as used
  return check_memory(bytes, available_memory());
}

Result<std::shared_ptr<std::byte>> SharedHeap::allocate(std::size_t bytes) {
  const std::size_t size =
      rounded_up(bytes, bytes < kLargeBlockBytes ? kHeapAlignment : kPageBytes);
  if (size < bytes) return Status::stop(format_text("{} bytes cannot be allocated", bytes));
  NewBlock new_block;
  if (bytes < kLargeBlockBytes) new_block = allocate_small(size);
  const std::size_t pages = rounded_up(bytes, kPageBytes);
  if (new_block.begin == nullptr) new_block = allocate_large(pages);
  if (new_block.begin == nullptr) {
    if (bytes >= kPortionBytes) FARANDOLE_TRY(ensure_room(pages));
    return allocate_private(pages);
  }
  std::shared_ptr<std::byte> block(
      new_block.begin, [heap = shared_from_this()](std::byte* begin) { heap->release(begin); });
  if (!new_block.is_fresh) {
    std::memset(new_block.begin, 0, bytes);
    return block;
  }
  for (std::size_t offset = 0; offset < pages; offset += kPortionBytes) {
    if (bytes >= kPortionBytes) FARANDOLE_TRY(ensure_room(pages - offset));
    segment_->allocate_huge_pages(new_block.begin + offset,
                                  std::min(kPortionBytes, pages - offset));
  }
  return block;
}

std::optional<std::uint64_t> SharedHeap::location_of(const void* address, std::size_t bytes) const {
  const Segment& segment = *segment_;
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < segment.data() || byte > segment.data() + segment.size()) return std::nullopt;
  const auto location = static_cast<std::size_t>(byte - segment.data());
  if (bytes > segment.size() - location) return std::nullopt;
  if (any_unshared_ && is_unshared({byte, bytes})) return std::nullopt;
  return location;
}

std::span<const std::byte> SharedHeap::pages_of(std::span<const std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t bytes_before = address % kPageBytes;
  return {memory.data() - bytes_before, rounded_up(bytes_before + memory.size(), kPageBytes)};
}

Status SharedHeap::unshare(std::span<const std::byte> memory) {
  CHECK(segment_->data() <= memory.data() &&
            memory.data() + memory.size() <= segment_->data() + segment_->size(),
        "the memory must be in the heap");
  const auto pages = pages_of(memory);
  {
    auto sharing = sharing_.lock();
    for (const HeapPin* const pin : sharing->pins)
      for (const auto& pinned_range : pin->pinned_memory_)
        if (do_overlap(pages, pinned_range))
          return Status::retry("another step exposes memory in these pages");
    const auto is_same = [&](const auto& range) {
      return range.data() == pages.data() && range.size() == pages.size();
    };
    // The pages may already be in the list, if make_private() has failed in an earlier call.
    if (!std::ranges::any_of(sharing->unshared_pages, is_same))
      sharing->unshared_pages.push_back(pages);
    any_unshared_ = true;
  }
  return segment_->make_private(const_cast<std::byte*>(pages.data()), pages.size());
}

bool SharedHeap::overlaps_heap(std::span<const std::byte> memory) const {
  return do_overlap(memory, {segment_->data(), segment_->size()});
}

HeapPin::HeapPin(SharedHeap& heap) : heap_(heap) { heap_.sharing_.lock()->pins.push_back(this); }

HeapPin::~HeapPin() { std::erase(heap_.sharing_.lock()->pins, this); }

void HeapPin::pin(const Memory& memory) {
  unpin();
  if (!std::ranges::any_of(memory, [&](const auto& range) { return heap_.overlaps_heap(range); }))
    return;
  auto sharing = heap_.sharing_.lock();
  pinned_memory_ = memory;
  is_pinned_ = true;
}

void HeapPin::unpin() {
  if (!is_pinned_) return;
  auto sharing = heap_.sharing_.lock();
  pinned_memory_ = {};
  is_pinned_ = false;
}

const Descriptor& SharedHeap::descriptor() const { return segment_->descriptor(); }

Result<std::unique_ptr<PeerHeap>> PeerHeap::attach(const Descriptor& segment) {
  FARANDOLE_TRY_ASSIGN(auto peer_segment, Segment::attach(segment));
  peer_segment->exclude_from_core_dumps();
  return std::unique_ptr<PeerHeap>(new PeerHeap(std::move(peer_segment)));
}

std::byte* PeerHeap::at(std::uint64_t location, std::size_t bytes) const {
  if (location > segment_->size() || bytes > segment_->size() - location) return nullptr;
  return segment_->data() + location;
}

}  // namespace farandole
