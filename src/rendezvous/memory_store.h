// MemoryStore: a Store within one process, for jobs of size 1 and for tests whose ranks are
// threads.
#pragma once

#include <string>
#include <vector>

#include "base/guarded.h"
#include "rendezvous/store.h"
#include "rendezvous/store_table.h"

namespace farandole {

class MemoryStore final : public Store {
 public:
  Status set(const std::string& key, StoreValue value) override;
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& unless,
                                   const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove(const std::string& key) override;

 private:
  Guarded<StoreTable> table_;
};

}  // namespace farandole
