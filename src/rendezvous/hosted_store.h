// Hosted store: the job's Store, served by a rank to the ranks of all hosts, in a job that another
// launcher than `farandole run` has started. The other ranks reach it as a RemoteStore.
#pragma once

#include <functional>
#include <memory>

#include "network/tcp/interfaces.h"
#include "rendezvous/remote_store.h"

namespace farandole {

// Serves a Store at options.places, which have one port, until the returned Store is destroyed.
// Listens at those addresses of the places that belong to this host. If the places
// are only names of loopback addresses here, as Debian's /etc/hosts has them, it listens at the
// addresses of `interfaces`. Tries until the limit to find the addresses of names. When the Store
// is destroyed, it first waits until formations that have begun are over, for a few seconds at
// most. Errors: kFixCall if the places cannot be parsed or are not on this host; kRetry
// (interrupted, timed out); kStop.
Result<std::shared_ptr<Store>> open_hosted_store(const RemoteStore::Options& options,
                                                 const InterfaceChoice& interfaces,
                                                 const WaitLimit& limit);

// Waits until no other rank is connected to the Store that open_hosted_store() has returned.
// Errors: kRetry (interrupted).
Status wait_for_other_ranks(Store& store, const std::function<bool()>& interrupted);

}  // namespace farandole
