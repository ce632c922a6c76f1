// FusionPlanner: decides which submissions of a fragment share a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace farandole {

struct FusionItem {
  std::uint64_t fusion_key = 0;  // InternedSignature::fusion_key
  std::int64_t bytes = 0;
  std::uint32_t batch = 0;  // 0: submitted alone
  // A digest of how many completions the user of each member had seen when it submitted this. Equal
  // for two items if all these numbers are equal.
  std::uint64_t waits = 0;
};

// Returns buckets of indices into `items`, which must be in the order in which they were seen. A
// bucket takes the position of its first item. All items of a bucket have the same fusion key, no
// member waited for a completion between any two of them, and together they have at most kListMax
// items and `fusion_bytes` bytes (a single item may be larger). An item may skip others that do not
// fit to join an earlier bucket, but no more than `fusion_bytes` of them. Batches stay together if
// possible. If `fusion_bytes` is 0, each item has its own bucket.
std::vector<std::vector<std::size_t>> plan_buckets(std::span<const FusionItem> items,
                                                   std::int64_t fusion_bytes);

}  // namespace farandole
