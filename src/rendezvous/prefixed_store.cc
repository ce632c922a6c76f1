#include "rendezvous/prefixed_store.h"

#include <utility>

#include "rendezvous/keys.h"

namespace farandole {
namespace {

std::string with_prefix(const std::string& prefix, const std::string& key) {
  // An empty text means "no key", for example as `end_key` or in errors. So an empty text gets no
  // prefix.
  return key.empty() || key == keys::host_token() ? key : prefix + key;
}

std::vector<std::string> with_prefix(const std::string& prefix,
                                     const std::vector<std::string>& keys) {
  std::vector<std::string> prefixed_keys;
  for (const auto& key : keys) prefixed_keys.push_back(with_prefix(prefix, key));
  return prefixed_keys;
}

}  // namespace

PrefixedStore::PrefixedStore(std::shared_ptr<Store> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

Status PrefixedStore::set(const std::string& key, Bytes value) {
  return store_->set(with_prefix(prefix_, key), std::move(value));
}

Result<StoreValues> PrefixedStore::wait_for_all(const std::vector<std::string>& keys,
                                                const std::string& end_key,
                                                const WaitLimit& limit) {
  return store_->wait_for_all(with_prefix(prefix_, keys), with_prefix(prefix_, end_key), limit);
}

Result<std::int64_t> PrefixedStore::add(const std::string& key, std::int64_t delta) {
  return store_->add(with_prefix(prefix_, key), delta);
}

Status PrefixedStore::remove_all(const std::vector<std::string>& keys) {
  return store_->remove_all(with_prefix(prefix_, keys));
}

Status PrefixedStore::replace(const std::string& key, Bytes value, const WaitLimit& limit) {
  return store_->replace(with_prefix(prefix_, key), std::move(value), limit);
}

Result<TimePoint> PrefixedStore::clock() { return store_->clock(); }

PrefixedLocalStore::PrefixedLocalStore(std::shared_ptr<LocalStore> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

Status PrefixedLocalStore::share(const std::string& key, LocalValue value) {
  return store_->share(with_prefix(prefix_, key), std::move(value));
}

Result<LocalValues> PrefixedLocalStore::receive_all(const std::vector<std::string>& keys,
                                                    const std::string& end_key,
                                                    const WaitLimit& limit) {
  return store_->receive_all(with_prefix(prefix_, keys), with_prefix(prefix_, end_key), limit);
}

Result<std::int64_t> PrefixedLocalStore::add(const std::string& key, std::int64_t delta) {
  return store_->add(with_prefix(prefix_, key), delta);
}

Status PrefixedLocalStore::remove_all(const std::vector<std::string>& keys) {
  return store_->remove_all(with_prefix(prefix_, keys));
}

Status PrefixedLocalStore::replace(const std::string& key, Bytes value, const WaitLimit& limit) {
  return store_->replace(with_prefix(prefix_, key), std::move(value), limit);
}

Result<TimePoint> PrefixedLocalStore::clock() { return store_->clock(); }

}  // namespace farandole
