// A name that no other job has, for things that outlive the job, such as files.
#pragma once

#include <string>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Returns the name: letters, digits and dots. It is the same on all ranks, and stays the same after
// a process calls init() again. The first rank that asks chooses it. Errors: those of the Store.
Result<std::string> job_name(Store& store);

}  // namespace farandole
