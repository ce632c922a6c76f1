// Hosted store: the job's Store in a job that was started by another launcher than `farandole run`.
// One rank serves the Store to the ranks of all hosts. The other ranks reach it as a RemoteStore.
#pragma once

#include <functional>
#include <memory>

#include "network/tcp/interfaces.h"
#include "rendezvous/remote_store.h"

namespace farandole {

// Serves a Store at options.places until the returned Store is destroyed. All places must have the
// same port. Listens at the addresses of the places that belong to this host. Debian's /etc/hosts
// often gives a host's own name only a loopback address. If the names in the places have only
// loopback addresses on this host, listens at the addresses of `interfaces` instead. The limit is
// for the look-up of names and for the wait until the port is free. When the Store is destroyed, it
// first waits until running formations are over, but only for a few seconds. Errors: kFixCall if
// the places cannot be parsed or are not on this host; kRetry (interrupted, timed out); kStop.
Result<std::shared_ptr<Store>> open_hosted_store(const RemoteStore::Options& options,
                                                 const InterfaceChoice& interfaces,
                                                 const WaitLimit& limit);

// Waits until no other rank is connected to the Store that open_hosted_store() has returned.
// Errors: kRetry (interrupted).
Status wait_for_other_ranks(Store& store, const std::function<bool()>& interrupted);

}  // namespace farandole
