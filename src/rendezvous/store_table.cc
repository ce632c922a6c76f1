#include "rendezvous/store_table.h"

#include <algorithm>
#include <utility>

#include "base/try.h"

namespace farandole {
namespace {

Status check_key(const std::string& key) {
  if (key.empty()) return Status::fix_call("a rendezvous key cannot be empty");
  if (key.size() > kStoreKeyBytesMax)
    return Status::fix_call("the rendezvous key `" + key.substr(0, 32) + "…` has " +
                            std::to_string(key.size()) + " bytes; the limit is " +
                            std::to_string(kStoreKeyBytesMax));
  return {};
}

Status check_value(const std::string& key, const LocalValue& value) {
  if (value.bytes.size() > kStoreValueBytesMax)
    return Status::fix_call("the value of rendezvous key `" + key + "` has " +
                            std::to_string(value.bytes.size()) + " bytes; the limit is " +
                            std::to_string(kStoreValueBytesMax));
  if (value.descriptors.size() > kStoreDescriptorsMax)
    return Status::fix_call("the value of rendezvous key `" + key + "` carries " +
                            std::to_string(value.descriptors.size()) +
                            " descriptors; the limit is " + std::to_string(kStoreDescriptorsMax));
  return {};
}

}  // namespace

Status StoreTable::check_room(const std::string& key) const {
  if (entries_.size() >= kStoreKeysMax)
    return Status::fix_call("the rendezvous store is full with " + std::to_string(kStoreKeysMax) +
                            " keys; `" + key + "` was rejected");
  return {};
}

Status StoreTable::set(const std::string& key, LocalValue value) {
  FARANDOLE_TRY(check_key(key));
  FARANDOLE_TRY(check_value(key, value));
  if (entries_.contains(key))
    return Status::fix_call("the rendezvous key `" + key +
                            "` exists already; a key is written only once");
  FARANDOLE_TRY(check_room(key));
  entries_.emplace(key, std::make_shared<const LocalValue>(std::move(value)));
  return {};
}

Result<SharedStoreValue> StoreTable::find(const std::string& key) const {
  FARANDOLE_TRY(check_key(key));
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return SharedStoreValue();
  const auto* value = std::get_if<SharedStoreValue>(&entry->second);
  if (value == nullptr)
    return Status::fix_call("the rendezvous key `" + key + "` is a counter, not a value");
  return *value;
}

// Continues at the key where the last call stopped, so that a wait checks few keys each time a key
// is written. Keys that earlier calls have found may no longer exist. So is_over() checks all keys
// again before it returns true.
bool StoreTable::is_over(StoreWait& wait) const {
  if (entries_.contains(wait.end_key)) return true;
  const auto find_missing = [&](std::size_t start) {
    const auto begin = wait.keys.begin() + static_cast<std::ptrdiff_t>(start);
    const auto missing = std::find_if(begin, wait.keys.end(), [this](const std::string& key) {
      const auto value = find(key);
      return value.ok() && *value == nullptr;
    });
    return static_cast<std::size_t>(missing - wait.keys.begin());
  };
  wait.first_missing = find_missing(wait.first_missing);
  if (wait.first_missing == wait.keys.size()) wait.first_missing = find_missing(0);
  return wait.first_missing == wait.keys.size();
}

Result<std::int64_t> StoreTable::add(const std::string& key, std::int64_t delta) {
  FARANDOLE_TRY(check_key(key));
  auto entry = entries_.find(key);
  if (entry == entries_.end()) {
    FARANDOLE_TRY(check_room(key));
    entry = entries_.emplace(key, std::int64_t{0}).first;
  }
  auto* counter = std::get_if<std::int64_t>(&entry->second);
  if (counter == nullptr)
    return Status::fix_call("the rendezvous key `" + key + "` is a value, not a counter");
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*counter, delta, &sum))
    return Status::fix_call("the rendezvous counter `" + key + "` would overflow: " +
                            std::to_string(*counter) + " + " + std::to_string(delta));
  return *counter = sum;
}

Status StoreTable::remove_all(const std::vector<std::string>& keys) {
  for (const auto& key : keys) {
    FARANDOLE_TRY(check_key(key));
    entries_.erase(key);
  }
  return {};
}

bool StoreTable::has_key_with_prefix(const std::string& prefix) const {
  const auto first = entries_.lower_bound(prefix);
  return first != entries_.end() && first->first.starts_with(prefix);
}

void StoreTable::remove_with_prefix(const std::string& prefix) {
  auto next = entries_.lower_bound(prefix);
  while (next != entries_.end() && next->first.starts_with(prefix)) next = entries_.erase(next);
}

}  // namespace farandole
