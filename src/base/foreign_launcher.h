// What other launchers than `farandole run` tell the processes that they start: torchrun, mpirun
// and the like. Reads variables, and for MPICH's the socket to its launcher; nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "farandole/engine.h"
#include "farandole/status.h"

namespace farandole {

struct ForeignJob {
  Place place;
  std::string meeting;  // the same text on all ranks of the job, and on none of another one
};

// The job that one of them has started this process for; nothing if none has. `environment` answers
// like getenv; an empty value counts as not set. Errors: kFixCall for numbers that make no sense, a
// job on several hosts, and one that nothing tells from others.
Result<std::optional<ForeignJob>> find_foreign_job(
    const std::function<const char*(const char*)>& environment);

}  // namespace farandole
