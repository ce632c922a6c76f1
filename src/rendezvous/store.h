// Store: the small key-value table through which members of a job find each other. A value may
// carry file descriptors: that is how shared memory and process handles reach a peer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "farandole/status.h"

namespace farandole {

// Limits hold for every implementation; a larger one is kFixCall.
inline constexpr std::size_t kStoreKeyBytesMax = 256;
inline constexpr std::size_t kStoreValueBytesMax = 64 * 1024;  // fits into one Unix message
inline constexpr std::size_t kStoreDescriptorsMax = 16;

struct StoreValue {
  Bytes bytes;
  std::vector<Descriptor> descriptors;
};

// How long a call may wait, and who may end the waiting early (asked about every 100 ms; may be
// empty). Ending early is kRetry "interrupted"; the deadline is kRetry "timed out".
struct WaitLimit {
  TimePoint deadline;
  const std::function<bool()>& interrupted;
};

// Any thread may call; calls of one object may wait for each other.
class Store {
 public:
  virtual ~Store() = default;

  // A key is written once: setting an existing one is kFixCall.
  virtual Status set(const std::string& key, StoreValue value) = 0;
  // Blocks until the key exists. The descriptors are the caller's own duplicates.
  virtual Result<StoreValue> wait(const std::string& key, const WaitLimit& limit) = 0;
  // Adds to a counter (born as 0) and returns the new value. Counters and values do not mix.
  virtual Result<std::int64_t> add(const std::string& key, std::int64_t delta) = 0;
  // Forgets a value or counter; an unknown key is fine.
  virtual Status remove(const std::string& key) = 0;
};

}  // namespace farandole
