// What the timeline of a rank must know about its job.
#pragma once

#include "farandole/status.h"
#include "formation/formation.h"
#include "rendezvous/store.h"
#include "timeline/timeline.h"

namespace farandole {

// Finds the name of the job. If the job has several hosts, also compares this host's clock with
// that of the host that keeps the Store, and finds when the job's first timeline began. Blocks for
// a few round trips. Errors: those of Store.
Result<Timeline::Job> timeline_job(const Formation& formation, Store& store);

}  // namespace farandole
