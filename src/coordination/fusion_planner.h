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
  std::uint32_t batch = 0;  // 0 if the item was submitted alone
  // A digest of SubmissionContext::waits of all members. If it differs between two items, a
  // member's program has waited for a completion between them, so they must not share a bucket.
  std::uint64_t waits = 0;
};

// Returns buckets of indices into `items`, which must be in the order of submission. A bucket takes
// the position of its first item. All items of a bucket have the same `fusion_key` and `waits`. A
// bucket has at most kListLengthMax items and `fusion_bytes` bytes (a single item may be larger).
// An item may move to an earlier bucket, past items that do not fit there. The items that it passes
// may have at most `fusion_bytes` bytes in total. Batches stay together if possible. If
// `fusion_bytes` is 0, each item has its own bucket.
std::vector<std::vector<std::size_t>> plan_buckets(std::span<const FusionItem> items,
                                                   std::int64_t fusion_bytes);

}  // namespace farandole
