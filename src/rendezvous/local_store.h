// LocalStore: a Store for the processes of one host. Its values may also carry descriptors, by
// which ranks share memory and descriptors of processes (pidfd). Two ranks count as ranks of the
// same host if and only if they use the same LocalStore, because only then can they pass
// descriptors to each other. Ranks recognize their common LocalStore by the value of
// keys::host_token(), which every LocalStore has from the start.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// The largest number of descriptors of one value. If a value has more, share() returns kFixCall.
inline constexpr std::size_t kStoreDescriptorsMax = 16;

struct LocalValue {
  Bytes bytes;
  std::vector<Descriptor> descriptors;
};

// Like StoreValues, but with descriptors.
using LocalValues = std::vector<std::optional<LocalValue>>;

// Returns a new random text for keys::host_token().
Bytes new_host_token();

class LocalStore : public Store {
 public:
  // Like set(), but with descriptors.
  virtual Status share(const std::string& key, LocalValue value) = 0;
  // Like wait_for_all(), but with descriptors. The received descriptors are duplicates, which the
  // caller owns.
  virtual Result<LocalValues> receive_all(const std::vector<std::string>& keys,
                                          const std::string& end_key, const WaitLimit& limit) = 0;
  // Like receive_all(), but for one key.
  Result<LocalValue> receive(const std::string& key, const WaitLimit& limit);

  Status set(const std::string& key, Bytes value) final {
    return share(key, {std::move(value), {}});
  }
  // Like Store::wait_for_all(). Closes the descriptors that come with the values.
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& end_key,
                                   const WaitLimit& limit) final;
};

// The Stores that a rank uses. In a job on one host, both may be the same object, because all keys
// of rendezvous/keys.h have different names.
struct Stores {
  std::shared_ptr<Store> job;         // shared with other engines of this process
  std::shared_ptr<LocalStore> local;  // shared with other engines of this process
  // Whether only one formation uses the keys. If so, the last rank that leaves the formation also
  // removes the keys that would otherwise exist as long as the job.
  bool for_one_formation = false;
  // In a job over several hosts, the engines publish the reports of their ranks in this Store. Null
  // if launchers publish them instead.
  std::shared_ptr<Store> reports = nullptr;

  // For a job on one host.
  static Stores on_one_host(std::shared_ptr<LocalStore> store) { return {store, store}; }
};

}  // namespace farandole
