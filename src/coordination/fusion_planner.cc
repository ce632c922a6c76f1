#include "coordination/fusion_planner.h"

#include "control/limits.h"

namespace farandole {
namespace {

class FusionPlanner {
 public:
  FusionPlanner(std::span<const FusionItem> items, std::int64_t fusion_bytes)
      : items_(items), fusion_bytes_(fusion_bytes), is_taken_(items.size()) {}

  std::vector<std::vector<std::size_t>> run() {
    std::vector<std::vector<std::size_t>> buckets;
    for (std::size_t first = 0; first < items_.size(); ++first)
      if (!is_taken_[first]) buckets.push_back(fill_bucket(first));
    return buckets;
  }

 private:
  std::vector<std::size_t> fill_bucket(std::size_t first) {
    std::vector<std::size_t> bucket = {first};
    is_taken_[first] = true;
    std::int64_t bytes = items_[first].bytes;
    if (items_[first].fusion_key == 0 || fusion_bytes_ == 0) return bucket;
    std::int64_t bytes_passed = 0;
    std::size_t items_passed = 0;
    for (std::size_t next = first + 1; next < items_.size(); ++next) {
      if (is_taken_[next]) continue;
      if (may_share(first, next) && fits(bucket, next, bytes)) {
        bucket.push_back(next);
        is_taken_[next] = true;
        bytes += items_[next].bytes;
      } else {
        bytes_passed += items_[next].bytes;
        ++items_passed;
      }
      if (bytes_passed > fusion_bytes_ || items_passed > kListLengthMax ||
          bucket.size() == kListLengthMax)
        break;
    }
    return bucket;
  }

  bool may_share(std::size_t a, std::size_t b) const {
    return items_[a].fusion_key == items_[b].fusion_key && items_[a].waits == items_[b].waits;
  }

  // Whether the item `next` fits into the bucket, which has `bytes` bytes so far. A batch must not
  // begin in a bucket that cannot hold the whole batch, unless the batch is larger than any bucket.
  bool fits(const std::vector<std::size_t>& bucket, std::size_t next, std::int64_t bytes) const {
    if (bytes + items_[next].bytes > fusion_bytes_) return false;
    const auto batch = items_[next].batch;
    if (batch == 0 || batch == items_[bucket.back()].batch) return true;
    std::int64_t batch_bytes = 0;
    for (std::size_t index = bucket.front(); index < items_.size(); ++index)
      if (items_[index].batch == batch && !is_taken_[index] && may_share(next, index))
        batch_bytes += items_[index].bytes;
    return bytes + batch_bytes <= fusion_bytes_ || batch_bytes > fusion_bytes_;
  }

  std::span<const FusionItem> items_;
  std::int64_t fusion_bytes_;
  std::vector<bool> is_taken_;
};

}  // namespace

std::vector<std::vector<std::size_t>> plan_buckets(std::span<const FusionItem> items,
                                                   std::int64_t fusion_bytes) {
  return FusionPlanner(items, fusion_bytes).run();
}

}  // namespace farandole
