// MemoryStore: a LocalStore within one process, for jobs of size 1 and for tests in which ranks are
// threads.
#pragma once

#include <string>
#include <vector>

#include "base/guarded.h"
#include "rendezvous/local_store.h"
#include "rendezvous/store_table.h"

namespace farandole {

class MemoryStore final : public LocalStore {
 public:
  MemoryStore();

  Status share(const std::string& key, LocalValue value) override;
  Result<LocalValues> receive_all(const std::vector<std::string>& keys, const std::string& end_key,
                                  const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove_all(const std::vector<std::string>& keys) override;
  Result<TimePoint> clock() override;

 private:
  Guarded<StoreTable> table_;
};

}  // namespace farandole
