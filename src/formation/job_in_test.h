// For tests: jobs over several hosts in one process. Every rank is a thread. Each host has a
// MemoryStore, which its ranks use as their LocalStore. All ranks share another MemoryStore as the
// job's Store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_in_test.h"
#include "formation/formation.h"
#include "rendezvous/memory_store.h"

namespace farandole {

inline EngineOptions formation_options(int rank, int size,
                                       std::vector<std::vector<int>> groups = {}) {
  EngineOptions options;
  options.heap_bytes = 4 << 20;
  options.topology = {.rank = rank, .size = size};
  options.groups = std::move(groups);
  options.start_timeout = std::chrono::minutes(1);
  return options;
}

class JobOfHosts {
 public:
  // `hosts` are the host numbers, by rank.
  explicit JobOfHosts(std::vector<int> hosts) : hosts_(std::move(hosts)) {
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank)
      stores_.push_back(std::make_shared<MemoryStore>());
  }

  int size() const { return static_cast<int>(hosts_.size()); }
  const std::shared_ptr<MemoryStore>& job_store() const { return job_store_; }
  const std::shared_ptr<MemoryStore>& store_of(int rank) const {
    return stores_[static_cast<std::size_t>(hosts_[static_cast<std::size_t>(rank)])];
  }

  Result<Formation> form(const EngineOptions& options) const {
    const int rank = options.topology.rank;
    return farandole::form(
        {.options = options,
         .stores = {job_store_, store_of(rank)},
         .make_heap = [](std::size_t bytes) -> Result<std::shared_ptr<SharedHeap>> {
           return SharedHeap::create(bytes);
         },
         .listen = [rank](std::int64_t) -> Result<std::vector<std::string>> {
           return {std::vector<std::string>{"address of " + std::to_string(rank)}};
         }});
  }

  // Forms the job with one thread per rank, and returns the formations by rank. `change_options`
  // may change the options of each rank.
  std::vector<Result<Formation>> form_all(
      const std::vector<std::vector<int>>& groups = {},
      const std::function<void(EngineOptions&)>& change_options = [](EngineOptions&) {}) const {
    std::vector<Result<Formation>> formations;
    for (int rank = 0; rank < size(); ++rank) formations.emplace_back(Status::stop("not formed"));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size(); ++rank)
      threads.emplace_back([&, rank] {
        EngineOptions options = formation_options(rank, size(), groups);
        change_options(options);
        formations[static_cast<std::size_t>(rank)] = form(options);
      });
    threads.clear();
    return formations;
  }

 private:
  std::vector<int> hosts_;
  std::vector<std::shared_ptr<MemoryStore>> stores_;
  std::shared_ptr<MemoryStore> job_store_ = std::make_shared<MemoryStore>();
};

}  // namespace farandole
