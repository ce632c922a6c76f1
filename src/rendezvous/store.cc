#include "rendezvous/store.h"

#include <utility>

#include "base/try.h"

namespace farandole {

Result<Bytes> Store::wait(const std::string& key, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, wait_for_all({key}, "", limit));
  return *std::move(values.front());
}

Result<Bytes> Store::set_if_new(const std::string& key, Bytes value) {
  // The error is ignored: either another rank was first, or the error occurs again in the wait.
  static_cast<void>(set(key, std::move(value)));
  const std::function<bool()> never;
  return wait(key, {TimePoint{}, never});
}

// For a Store that answers at once.
Status Store::replace(const std::string& key, Bytes value, const WaitLimit& /*limit*/) {
  FARANDOLE_TRY(remove(key));
  return set(key, std::move(value));
}

}  // namespace farandole
