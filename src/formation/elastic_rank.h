// Elastic rank: gets the rank of a worker of an elastic job. In each epoch, the launcher forms a
// new group of the workers that exist (src/membership).
#pragma once

#include "farandole/engine.h"

namespace farandole {

// Whether the launcher chooses the rank of the engine.
bool gets_rank_from_launcher(const EngineOptions& options);

// Asks the launcher for a rank in the next epoch, and sets the topology and the rendezvous id of
// that epoch in `options`. Blocks until the epoch is formed. Errors: kRetry (interrupted), kStop.
Status take_elastic_rank(EngineOptions& options);
// Call it if the worker could not join the epoch after take_elastic_rank(). Returns whether the
// worker should try again: true if another rank has ended or cannot be reached, or if the
// connection to the job's Store on another host has ended. `tries` counts the successive failures.
// If `tries` is 2, 4, 8 and so on, also writes the failure to standard error, so that the user sees
// a failure that repeats.
bool may_join_again(const EngineOptions& options, const Status& failure, int tries);

}  // namespace farandole
