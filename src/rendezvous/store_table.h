// StoreTable: the contents of a Store, without waiting or locks. Every implementation of Store
// keeps its keys in one, so limits and errors are the same everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// How many keys may exist at one time.
inline constexpr std::size_t kStoreKeysMax = 1 << 16;

// Only one thread at a time may use it. Errors: those of Store.
class StoreTable {
 public:
  Status set(const std::string& key, StoreValue value);
  // Returns the value with duplicates of its descriptors. kRetry if the key does not exist.
  Result<StoreValue> find(const std::string& key) const;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta);
  Status remove(const std::string& key);
  bool has_key_under(const std::string& prefix) const;

 private:
  Status check_room(const std::string& key) const;

  std::map<std::string, std::variant<StoreValue, std::int64_t>> entries_;
};

}  // namespace farandole
