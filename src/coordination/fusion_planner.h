// FusionPlanner: which submissions share a step, of a set that comes together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace farandole {

struct FusionItem {
  std::uint64_t fusion_key = 0;  // of its KnownSignature
  std::int64_t bytes = 0;
  std::uint32_t batch = 0;  // 0: submitted alone
  // How many completions each member's user had seen when it submitted this.
  std::vector<std::uint32_t> waits;
};

// Buckets of indices into `items`, which are in the order in which they were seen; each bucket
// stands where its first one was. In a bucket: one fusion key, at most `fusion_bytes` (unless it is
// one alone) and kListMax items, and no member has waited for anything between any two of them. A
// bucket reaches past others that do not fit, but not past more than `fusion_bytes` of them. A
// batch stays together where it can. `fusion_bytes` 0: each has its own bucket.
std::vector<std::vector<std::size_t>> plan_buckets(std::span<const FusionItem> items,
                                                   std::int64_t fusion_bytes);

}  // namespace farandole
