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

// The elastic job to which the group of a formation belongs.
struct ElasticGroup {
  std::int64_t epoch = 0;
  ElasticJobName job;
  bool may_have_other_hosts = false;  // other groups of the job may be on other hosts
};

// Finds the name of the job. If the job has several hosts, also compares this host's clock with the
// clock of the host that keeps the Store, and finds when the job's first timeline began. Blocks for
// a few round trips. `elastic` is empty if the job is not elastic. Errors: those of Store.
Result<Timeline::Job> timeline_job(const Formation& formation, Store& store,
                                   const std::optional<ElasticGroup>& elastic);

}  // namespace farandole
