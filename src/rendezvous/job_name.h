// Job name: a unique name of a job, for objects that outlive the job, such as files.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Returns the name, which consists of digits and one dot. All ranks get the same name, also when a
// process calls init() again. The first rank that calls this function chooses the name. Errors:
// those of the Store.
Result<std::string> job_name(Store& store);

// The name of an elastic job. Its members remember the name, because the job's Store may be
// replaced by a new, empty Store.
struct ElasticJobName {
  std::string name;
  TimePoint zero{};  // the time of the first group, on the clock of the Store's host
};

// Returns the name of an elastic job. In each group, rank 0 sets the remembered name or chooses a
// new name, and the other ranks wait for this name. If there was an earlier group, rank 0 was a
// member of it, and so remembers the name. Errors: kRebuildGroup if the key `end_key` exists first;
// those of the Store.
Result<ElasticJobName> elastic_job_name(Store& store, int rank,
                                        const std::optional<ElasticJobName>& remembered,
                                        const std::string& end_key, const WaitLimit& limit);

}  // namespace farandole
