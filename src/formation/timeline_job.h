// What the timeline of a rank must know about its job.
#pragma once

#include <cstdint>
#include <optional>

#include "farandole/status.h"
#include "formation/formation.h"
#include "rendezvous/job_name.h"
#include "rendezvous/store.h"
#include "timeline/timeline.h"

namespace farandole {

// The elastic job whose group was formed.
struct ElasticGroup {
  std::int64_t epoch = 0;
  ElasticJobName job;
  bool may_have_other_hosts = false;  // in other groups
};

// Finds the name of the job. If the job has several hosts, also compares this host's clock with
// that of the host that keeps the Store, and finds when the job's first timeline began. Blocks for
// a few round trips. `elastic` is empty if the job is not elastic. Errors: those of Store.
Result<Timeline::Job> timeline_job(const Formation& formation, Store& store,
                                   const std::optional<ElasticGroup>& elastic);

}  // namespace farandole
