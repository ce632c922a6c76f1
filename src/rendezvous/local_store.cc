#include "rendezvous/local_store.h"

#include <utility>

#include "base/try.h"

namespace farandole {

Result<LocalValue> LocalStore::receive(const std::string& key, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, receive_all({key}, "", limit));
  return *std::move(values.front());
}

Result<StoreValues> LocalStore::wait_for_all(const std::vector<std::string>& keys,
                                             const std::string& unless, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, receive_all(keys, unless, limit));
  StoreValues bytes;
  for (auto& value : values)
    bytes.push_back(value ? std::optional(std::move(value->bytes)) : std::nullopt);
  return bytes;
}

}  // namespace farandole
