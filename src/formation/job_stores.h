// Job stores: opens the Stores in which a rank finds the other ranks of its job.
#pragma once

#include <memory>

#include "farandole/engine.h"
#include "formation/host_network.h"
#include "rendezvous/local_store.h"

namespace farandole {

// The Stores and the network of a rank.
struct StoresAndNetwork {
  Stores stores;
  std::unique_ptr<HostNetwork> network;  // null without a job_store
};

// Opens the stores and the network that the options describe. The LocalStore belongs to the
// launcher, or is found by the rendezvous id, or is a new MemoryStore if the rank is alone on its
// host. Without a job_store, the LocalStore is also the job's Store. If the launcher has a Store
// and there is a rendezvous id, all keys in that Store get a prefix. `options.context` must be set.
// Errors: as Engine::create().
Result<StoresAndNetwork> open_stores_and_network(const EngineOptions& options);

// Returns the Store of the whole job, without a prefix. If the job is on one host, this is the
// launcher's Store. Errors: as Engine::create().
Result<std::shared_ptr<Store>> open_whole_store(const EngineOptions& options);

// Whether another launcher than `farandole run` has started the ranks of the job.
bool has_other_launcher(const EngineOptions& options);

}  // namespace farandole
