// Named store: a common LocalStore for the ranks of a job that was started by a launcher other than
// `farandole run`. The ranks find the Store by a name that they all know and that no other job has.
// The first rank that opens the Store becomes the owner, which serves it in a thread. All ranks,
// including the owner, are clients.
#pragma once

#include <memory>
#include <string>

#include "farandole/status.h"
#include "rendezvous/local_store.h"

namespace farandole {

// Returns a Store for one formation; each formation needs a different name. Does not wait for the
// other ranks; a caller that must wait for them waits for the keys that they set. When the owner
// destroys its Store, it first waits until the other ranks have finished the formation, but only
// for a few seconds. Later calls of the other ranks return kStop. Errors: kRetry (interrupted,
// timed out), kStop.
Result<std::shared_ptr<LocalStore>> open_named_store(const std::string& name, int members,
                                                     const WaitLimit& limit);

}  // namespace farandole
