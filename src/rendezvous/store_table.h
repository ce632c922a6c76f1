// StoreTable: the contents of a Store, without waits or locks. Every implementation of Store keeps
// its keys in a StoreTable, so that limits and errors are the same in all of them. Only the values
// of a LocalStore have descriptors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "farandole/status.h"
#include "rendezvous/local_store.h"

namespace farandole {

// The largest number of keys that may exist at the same time.
inline constexpr std::size_t kStoreKeysMax = 1 << 16;

// A wait for several keys, as in LocalStore::receive_all().
struct StoreWait {
  std::vector<std::string> keys;
  std::string end_key;
  std::size_t first_missing = 0;  // index of the first key that is_over() did not find

  // Whether the wait may be over after this key was written.
  bool awaits(const std::string& key) const { return key == keys[first_missing] || key == end_key; }
};

// A value in the table. The table and the unsent answers own it.
using SharedStoreValue = std::shared_ptr<const LocalValue>;

// Only one thread at a time may use it. Errors: those of Store.
class StoreTable {
 public:
  Status set(const std::string& key, LocalValue value);
  // Returns null if the key does not exist.
  Result<SharedStoreValue> find(const std::string& key) const;
  // Whether `end_key` or all keys exist. A key for which find() returns an error counts as
  // existing.
  bool is_over(StoreWait& wait) const;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta);
  Status remove_all(const std::vector<std::string>& keys);
  bool has_key_with_prefix(const std::string& prefix) const;
  void remove_with_prefix(const std::string& prefix);

 private:
  Status check_room(const std::string& key) const;

  std::map<std::string, std::variant<SharedStoreValue, std::int64_t>> entries_;
};

}  // namespace farandole
