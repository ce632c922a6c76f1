// Gives the ranks of a job a common Store if another launcher than `farandole run` has started
// them. They find it by a name that all of them know and that no other job has. The first rank that
// comes serves the Store in a thread of its own. All ranks, including that one, are clients.
#pragma once

#include <memory>
#include <string>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Returns a Store for one formation; each formation needs a name of its own. Does not wait for the
// other ranks: a rank waits for their keys instead. When the owner destroys its Store, it first
// lets the others finish their formation, for some seconds at most; later calls of theirs return
// kStop. Errors: kRetry (interrupted, timed out), kStop.
Result<std::shared_ptr<Store>> open_named_store(const std::string& name, int members,
                                                const WaitLimit& limit);

}  // namespace farandole
