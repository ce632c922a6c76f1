// Where the ranks of a job meet when another launcher than ours has started them: under a name that
// all of them know and nobody else's job has. The first that comes keeps the Store, in a thread of
// its own; it and all others are clients.
#pragma once

#include <memory>
#include <string>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Does not wait for the others: who misses one waits for its keys. For one formation: each needs a
// name of its own. When the keeper lets go of its Store it first lets the others finish their
// formation, for some seconds at most; from then on their calls are kStop. Errors: kRetry
// (interrupted, timed out), kStop.
Result<std::shared_ptr<Store>> meet(const std::string& name, int members, const WaitLimit& limit);

}  // namespace farandole
