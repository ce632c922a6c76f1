// LocalStore: a Store of the processes of one host, whose values may also carry descriptors. So
// ranks can share memory and descriptors of processes (pidfd). Two ranks count as on the same host
// if and only if they use the same LocalStore, because only then can they pass descriptors to each
// other. Ranks recognize their common LocalStore by the value of keys::host_token(), which every
// LocalStore has from the start.
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

// Every implementation has this limit; more descriptors are a kFixCall error.
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
  // Like wait_for_all(), but with descriptors. The caller owns them; they are duplicates.
  virtual Result<LocalValues> receive_all(const std::vector<std::string>& keys,
                                          const std::string& unless, const WaitLimit& limit) = 0;
  // Waits for one key in the same way.
  Result<LocalValue> receive(const std::string& key, const WaitLimit& limit);

  Status set(const std::string& key, Bytes value) final {
    return share(key, {std::move(value), {}});
  }
  // Closes descriptors that the values carry.
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& unless,
                                   const WaitLimit& limit) final;
};

// The Stores that a rank uses. In a job on one host, both may be the same object, because no two
// keys of rendezvous/keys.h have the same name.
struct Stores {
  std::shared_ptr<Store> job;         // shared with other engines of this process
  std::shared_ptr<LocalStore> local;  // shared with other engines of this process
  // Whether no other formation uses the keys. Then the last rank that departs also removes the keys
  // that otherwise stay as long as the job.
  bool for_one_formation = false;
  // In a job over several hosts, the engines publish here what the ranks of their hosts do. Null if
  // launchers publish this instead.
  std::shared_ptr<Store> reports = nullptr;

  // For a job on one host.
  static Stores on_one_host(std::shared_ptr<LocalStore> store) { return {store, store}; }
};

}  // namespace farandole
