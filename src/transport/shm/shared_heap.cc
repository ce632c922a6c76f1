#include "transport/shm/shared_heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/guarded.h"
#include "base/try.h"
#include "transport/shm/segment.h"

namespace farandole {
namespace {

std::size_t rounded(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kHeapAlignment - 1) / kHeapAlignment * kHeapAlignment;
}

enum class Use : std::uint8_t {
  kCommon,     // whatever fits
  kDedicated,  // one large block, with which it goes
};

// The free ranges of one segment, or of a part of it, and how much of it was ever handed out.
class Arena {
 public:
  Arena(std::shared_ptr<Segment> segment, Use use, std::size_t begin, std::size_t bytes)
      : segment_(std::move(segment)), use_(use), begin_(segment_->data() + begin), bytes_(bytes) {
    free_.emplace(0, bytes_);
  }

  struct Range {
    std::byte* begin;
    std::size_t used_before;  // leading bytes that are not zero any more
  };

  // First fit; null if no free range is large enough.
  std::optional<Range> take(std::size_t bytes) {
    const auto range =
        std::find_if(free_.begin(), free_.end(), [&](auto& free) { return free.second >= bytes; });
    if (range == free_.end()) return std::nullopt;
    const auto [offset, available] = *range;
    taken_.emplace(offset, bytes);  // first: it may throw
    auto rest = free_.extract(range);
    if (available > bytes) {
      rest.key() = offset + bytes;
      rest.mapped() = available - bytes;
      free_.insert(std::move(rest));
    }
    const std::size_t used_before = std::min(bytes, used_end_ - std::min(used_end_, offset));
    used_end_ = std::max(used_end_, offset + bytes);
    return Range{begin_ + offset, used_before};
  }

  // Needs no memory: destructors call it.
  void give_back(const std::byte* begin) {
    auto node = taken_.extract(static_cast<std::size_t>(begin - begin_));
    CHECK(!node.empty(), "a block is given back once");
    auto range = free_.insert(std::move(node)).position;
    const auto after = std::next(range);
    if (after != free_.end() && after->first == range->first + range->second) {
      range->second += after->second;
      free_.erase(after);
    }
    if (range == free_.begin()) return;
    const auto before = std::prev(range);
    if (before->first + before->second != range->first) return;
    before->second += range->second;
    free_.erase(range);
  }

  bool holds(const std::byte* address) const {
    return address >= begin_ && address < begin_ + bytes_;
  }
  Use use() const { return use_; }

 private:
  std::shared_ptr<Segment> segment_;  // shared with the heap if it is the first one
  Use use_;
  std::byte* begin_;
  std::size_t bytes_;
  std::map<std::size_t, std::size_t> free_;   // offset → bytes; neighbours are merged
  std::map<std::size_t, std::size_t> taken_;  // likewise, not merged
  std::size_t used_end_ = 0;                  // nothing from here on was ever handed out
};

// Shared by the heap and all blocks, so that memory outlives the heap.
struct Pool {
  Guarded<std::vector<Arena>> arenas;
  std::atomic<bool> abandoned = false;

  void give_back(const std::byte* begin) {
    // In the child of a fork another thread may have held the lock for ever.
    if (abandoned.load(std::memory_order_relaxed)) return;
    auto arenas_now = arenas.lock();
    const auto arena = std::find_if(arenas_now->begin(), arenas_now->end(),
                                    [&](const Arena& a) { return a.holds(begin); });
    CHECK(arena != arenas_now->end(), "a block goes back to the heap that it came from");
    if (arena->use() == Use::kDedicated)
      arenas_now->erase(arena);
    else
      arena->give_back(begin);
  }
};

std::optional<Arena::Range> take_from_any(std::vector<Arena>& arenas, Use use, std::size_t bytes) {
  for (Arena& arena : arenas) {
    if (arena.use() != use) continue;
    if (const auto range = arena.take(bytes)) return range;
  }
  return std::nullopt;
}

Result<Arena::Range> take_or_grow(Pool& pool, std::size_t bytes) {
  auto arenas = pool.arenas.lock();
  if (const auto range = take_from_any(*arenas, Use::kCommon, bytes)) return *range;
  const Use use = bytes > kGrowthBytes ? Use::kDedicated : Use::kCommon;
  FARANDOLE_TRY_ASSIGN(auto segment,
                       Segment::create("farandole-heap-growth", std::max(bytes, kGrowthBytes)));
  segment->close_descriptor();  // no peer maps it
  const std::size_t size = segment->size();
  arenas->emplace_back(std::move(segment), use, 0, size);
  return arenas->back().take(bytes).value();
}

std::shared_ptr<std::byte> block_of(std::shared_ptr<Pool> pool, const Arena::Range& range) {
  std::memset(range.begin, 0, range.used_before);
  return {range.begin, [pool = std::move(pool)](std::byte* begin) { pool->give_back(begin); }};
}

}  // namespace

struct SharedHeap::Parts {
  std::shared_ptr<Segment> first;  // shared with its arena
  std::shared_ptr<Pool> pool;      // shared with all blocks
};

SharedHeap::SharedHeap(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
// Blocks may live on; nobody needs the descriptor any more.
SharedHeap::~SharedHeap() { parts_->first->close_descriptor(); }

Result<std::unique_ptr<SharedHeap>> SharedHeap::create() {
  FARANDOLE_TRY_ASSIGN(auto first, Segment::create("farandole-heap", kFirstSegmentBytes));
  auto pool = std::make_shared<Pool>();
  {
    auto arenas = pool->arenas.lock();
    arenas->emplace_back(first, Use::kCommon, 0, kFirstSegmentBytes);
  }
  return std::unique_ptr<SharedHeap>(
      new SharedHeap(std::make_unique<Parts>(Parts{std::move(first), std::move(pool)})));
}

Result<std::shared_ptr<std::byte>> SharedHeap::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  if (size < bytes) return Status::stop(fmt::format("{} bytes cannot be allocated", bytes));
  FARANDOLE_TRY_ASSIGN(const auto range, take_or_grow(*parts_->pool, size));
  return block_of(parts_->pool, range);
}

std::optional<std::uint64_t> SharedHeap::location_of(const void* address, std::size_t bytes) const {
  const auto* begin = parts_->first->data();
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < begin || byte > begin + parts_->first->size()) return std::nullopt;
  const auto location = static_cast<std::size_t>(byte - begin);
  if (bytes > parts_->first->size() - location) return std::nullopt;
  return location;
}

const Descriptor& SharedHeap::first_segment() const { return parts_->first->descriptor(); }

void SharedHeap::abandon_after_fork() {
  parts_->pool->abandoned.store(true, std::memory_order_relaxed);
  parts_->first->close_descriptor();
}

Result<std::unique_ptr<PeerHeap>> PeerHeap::attach(const Descriptor& first_segment) {
  FARANDOLE_TRY_ASSIGN(auto segment, Segment::attach(first_segment, kFirstSegmentBytes));
  return std::unique_ptr<PeerHeap>(new PeerHeap(std::move(segment)));
}

std::byte* PeerHeap::at(std::uint64_t location, std::size_t bytes) const {
  if (location > segment_->size() || bytes > segment_->size() - location) return nullptr;
  return segment_->data() + location;
}

}  // namespace farandole
