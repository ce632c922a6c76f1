// Store: the small key-value table through which members of a job find each other. All ranks of a
// job use the same Store, also on different hosts. To pass descriptors, use LocalStore.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "farandole/status.h"

namespace farandole {

// The limits of every implementation. Larger keys and values are kFixCall errors.
inline constexpr std::size_t kStoreKeyBytesMax = 256;
inline constexpr std::size_t kStoreValueBytesMax = 64 * 1024;  // fits into one Unix message

// The result of a wait for several keys: one entry for each key, empty if the key does not exist.
using StoreValues = std::vector<std::optional<Bytes>>;

// The limit of a call that waits. At the deadline, the call returns kRetry "timed out". If
// `interrupted` returns true, the call ends before the deadline and returns kRetry "interrupted".
// `interrupted` is called about every 100 ms and may be empty.
struct WaitLimit {
  TimePoint deadline;
  const std::function<bool()>& interrupted;
};

// Any thread may call it; several threads may wait at the same time.
class Store {
 public:
  virtual ~Store() = default;

  // Sets a new key. Setting an existing key is a kFixCall error.
  virtual Status set(const std::string& key, Bytes value) = 0;
  // `keys` must not be empty. Blocks until all keys exist, or until the key `end_key` exists. In
  // the second case, some of the values may be missing. An empty `end_key` names no key. Values
  // that do not fit into one message are read with several requests.
  virtual Result<StoreValues> wait_for_all(const std::vector<std::string>& keys,
                                           const std::string& end_key, const WaitLimit& limit) = 0;
  // Like wait_for_all(), but for one key.
  Result<Bytes> wait(const std::string& key, const WaitLimit& limit);
  // Sets the key if it has no value yet. Returns the value of the key. So all ranks that call
  // set_if_new() get the value of the first caller.
  Result<Bytes> set_if_new(const std::string& key, Bytes value);
  // Adds to a counter, which starts at 0, and returns the new value. A key is either a counter or a
  // value.
  virtual Result<std::int64_t> add(const std::string& key, std::int64_t delta) = 0;
  // Removes values and counters. Keys that do not exist are ignored.
  virtual Status remove_all(const std::vector<std::string>& keys) = 0;
  // Removes one value or counter.
  Status remove(const std::string& key) { return remove_all({key}); }
  // Sets a key that may already exist. If the call returns kRetry (see WaitLimit), the key has its
  // old value, its new value or no value.
  virtual Status replace(const std::string& key, Bytes value, const WaitLimit& limit);
  // Returns the current time on the clock of the host that keeps the Store.
  virtual Result<TimePoint> clock() = 0;
};

}  // namespace farandole
