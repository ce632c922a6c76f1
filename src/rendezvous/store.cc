#include "rendezvous/store.h"

#include <utility>

#include "base/try.h"

namespace farandole {

Result<Bytes> Store::wait(const std::string& key, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, wait_for_all({key}, "", limit));
  return *std::move(values.front());
}

Result<Bytes> Store::set_if_new(const std::string& key, Bytes value) {
  // Ignores the error of set(). If another rank has set the key first, the value of that rank
  // counts. After any other error, wait() fails, too.
  static_cast<void>(set(key, std::move(value)));
  const std::function<bool()> never_interrupted;
  return wait(key, {TimePoint{}, never_interrupted});
}

// This default is for a Store that answers without waiting, so the default does not need the limit.
Status Store::replace(const std::string& key, Bytes value, const WaitLimit& /*limit*/) {
  FARANDOLE_TRY(remove(key));
  return set(key, std::move(value));
}

}  // namespace farandole
