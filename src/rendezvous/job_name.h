// Job name: a name that no other job has, for objects that outlive the job, such as files.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Returns the name, which consists of digits and one dot. It is the same on all ranks, and remains
// the same when a process calls init() again. The first rank that calls this function chooses the
// name. Errors: those of the Store.
Result<std::string> job_name(Store& store);

// What the members of an elastic job remember, because another Store may take the place of the
// job's Store.
struct ElasticJobName {
  std::string name;
  TimePoint zero{};  // when the job had its first group, on the clock of the host of the Store
};

// Returns the name of an elastic job. Rank 0 of each group chooses it, or sets again what it
// remembers, and the other ranks wait for it. Rank 0 was in an earlier group if there was one.
// Errors: kRebuildGroup if the key `unless` exists first; those of the Store.
Result<ElasticJobName> elastic_job_name(Store& store, int rank,
                                        const std::optional<ElasticJobName>& remembered,
                                        const std::string& unless, const WaitLimit& limit);

}  // namespace farandole
