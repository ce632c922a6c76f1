// A name for the job that no other job has, for what outlives it: files.
#pragma once

#include <string>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Letters, digits and dots; the same on all ranks, and in every life of a process in the job. The
// first rank that asks makes it up. Errors: those of the Store.
Result<std::string> job_name(Store& store);

}  // namespace farandole
