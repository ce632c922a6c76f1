#include "rendezvous/memory_store.h"

#include <fcntl.h>

#include <utility>

#include "base/check.h"
#include "base/descriptor_limit.h"
#include "base/try.h"
#include "rendezvous/keys.h"
#include "rendezvous/waiting.h"

namespace farandole {
namespace {

Result<LocalValue> duplicate(const LocalValue& value) {
  LocalValue copy{value.bytes, {}};
  for (const auto& descriptor : value.descriptors) {
    const int number = ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0);
    if (number < 0)
      return Status::stop("the rendezvous cannot duplicate a descriptor: " + descriptor_advice());
    copy.descriptors.emplace_back(number);
  }
  return copy;
}

Result<LocalValues> duplicate_values(const StoreTable& table,
                                     const std::vector<std::string>& keys) {
  LocalValues values(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    FARANDOLE_TRY_ASSIGN(const auto value, table.find(keys[i]));
    if (value == nullptr) continue;
    FARANDOLE_TRY_ASSIGN(values[i], duplicate(*value));
  }
  return values;
}

}  // namespace

MemoryStore::MemoryStore() {
  CHECK(table_.lock()->set(keys::host_token(), {new_host_token(), {}}).ok(), "the table is empty");
}

Status MemoryStore::share(const std::string& key, LocalValue value) {
  const Status status = table_.lock()->set(key, std::move(value));
  table_.notify_all();
  return status;
}

Result<LocalValues> MemoryStore::receive_all(const std::vector<std::string>& keys,
                                             const std::string& end_key, const WaitLimit& limit) {
  StoreWait wait{keys, end_key};
  for (;;) {
    const TimePoint slice_end = next_slice_end(limit);
    {
      auto table = table_.lock();
      const auto is_over = [&](const StoreTable& locked_table) {
        return locked_table.is_over(wait);
      };
      if (table.wait_until(slice_end, is_over)) return duplicate_values(*table, keys);
    }
    // The lock must not be held here, because check_limit() may call the user's functions.
    FARANDOLE_TRY(check_limit(keys, limit));
  }
}

Result<std::int64_t> MemoryStore::add(const std::string& key, std::int64_t delta) {
  auto sum = table_.lock()->add(key, delta);
  table_.notify_all();
  return sum;
}

Result<TimePoint> MemoryStore::clock() { return std::chrono::steady_clock::now(); }

Status MemoryStore::remove_all(const std::vector<std::string>& keys) {
  return table_.lock()->remove_all(keys);
}

}  // namespace farandole
