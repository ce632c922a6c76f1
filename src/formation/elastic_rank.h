// Elastic rank: how a worker of an elastic job learns its rank. The launcher forms the group of the
// job again and again, each time with the workers that are there (src/membership).
#pragma once

#include "farandole/engine.h"

namespace farandole {

// Whether the launcher decides which rank the engine has.
bool gets_rank_from_launcher(const EngineOptions& options);

// Asks the launcher for a rank in the next epoch, and sets the topology and the rendezvous id
// of this epoch. Blocks until the epoch is formed. Errors: kRetry (interrupted), kStop.
Status take_elastic_rank(EngineOptions& options);
// After take_elastic_rank(), the worker could not join the epoch. Returns whether to begin again:
// because another rank has ended or cannot be reached, or because the connection to the Store of
// the job, which is on another host, has ended. `tries` counts the failures in a row. When it is 2,
// 4, 8 and so on, writes the failure to the standard error, because it may come again and again.
bool may_join_again(const EngineOptions& options, const Status& failure, int tries);

}  // namespace farandole
