#include "rendezvous/memory_store.h"

#include <optional>
#include <utility>

#include "rendezvous/waiting.h"

namespace farandole {

Status MemoryStore::set(const std::string& key, StoreValue value) {
  const Status status = table_.lock()->set(key, std::move(value));
  table_.notify_all();
  return status;
}

Result<StoreValue> MemoryStore::wait(const std::string& key, const WaitLimit& limit) {
  for (;;) {
    const TimePoint slice_end = next_slice_end(limit);
    std::optional<Result<StoreValue>> found;
    table_.lock().wait_until(slice_end, [&](const StoreTable& table) {
      found.emplace(table.find(key));
      return found->status().code() != StatusCode::kRetry;
    });
    if (found->status().code() != StatusCode::kRetry) return std::move(*found);
    // The lock is not held here, because wait_is_over() may call the user's functions.
    if (Status over = wait_is_over(key, limit); !over.ok()) return over;
  }
}

Result<std::int64_t> MemoryStore::add(const std::string& key, std::int64_t delta) {
  auto sum = table_.lock()->add(key, delta);
  table_.notify_all();
  return sum;
}

Status MemoryStore::remove(const std::string& key) { return table_.lock()->remove(key); }

}  // namespace farandole
