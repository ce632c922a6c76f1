#include "rendezvous/store.h"

#include <utility>

#include "base/try.h"

namespace farandole {

Result<Bytes> Store::wait(const std::string& key, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, wait_for_all({key}, "", limit));
  return *std::move(values.front());
}

}  // namespace farandole
