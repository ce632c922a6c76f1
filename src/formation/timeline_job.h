// Finds the facts about a job that the timeline of a rank needs.
#pragma once

#include <cstdint>
#include <optional>

#include "farandole/status.h"
#include "formation/formation.h"
#include "rendezvous/job_name.h"
#include "rendezvous/store.h"
#include "timeline/timeline.h"

namespace farandole {

// The elastic job of the group that was formed.
struct ElasticGroup {
  std::int64_t epoch = 0;
  ElasticJobName job;
  bool may_have_other_hosts = false;  // in other groups of the job
};

// Finds the name of the job. If the job has several hosts, also compares this host's clock with the
// clock of the host that keeps the Store, and finds when the job's first timeline began. Blocks for
// a few round trips. `elastic` is empty if the job is not elastic. Errors: those of Store.
Result<Timeline::Job> timeline_job(const Formation& formation, Store& store,
                                   const std::optional<ElasticGroup>& elastic);

}  // namespace farandole
