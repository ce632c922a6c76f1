// Prefixed store: a part of another Store in which all keys have the same prefix. With it, several
// engines can use one Store at the same time without reading each other's keys.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rendezvous/local_store.h"

namespace farandole {

// In both classes, kStoreKeyBytesMax limits the length of the key with its prefix. Error texts show
// keys with their prefix.

class PrefixedStore final : public Store {
 public:
  PrefixedStore(std::shared_ptr<Store> store, std::string prefix);

  Status set(const std::string& key, Bytes value) override;
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& end_key,
                                   const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove_all(const std::vector<std::string>& keys) override;
  Status replace(const std::string& key, Bytes value, const WaitLimit& limit) override;
  Result<TimePoint> clock() override;

 private:
  const std::shared_ptr<Store> store_;  // shared with other engines
  const std::string prefix_;
};

// Only keys::host_token() has no prefix, because it belongs to the whole LocalStore.
class PrefixedLocalStore final : public LocalStore {
 public:
  PrefixedLocalStore(std::shared_ptr<LocalStore> store, std::string prefix);

  Status share(const std::string& key, LocalValue value) override;
  Result<LocalValues> receive_all(const std::vector<std::string>& keys, const std::string& end_key,
                                  const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove_all(const std::vector<std::string>& keys) override;
  Status replace(const std::string& key, Bytes value, const WaitLimit& limit) override;
  Result<TimePoint> clock() override;

 private:
  const std::shared_ptr<LocalStore> store_;  // shared with other engines
  const std::string prefix_;
};

}  // namespace farandole
