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
// Whether the connection to the Store of the job, which is on another host, has ended. Call it
// after take_elastic_rank().
bool has_lost_job_store(const EngineOptions& options);

}  // namespace farandole
