// Job name: a name that no other job has, for objects that outlive the job, such as files.
#pragma once

#include <string>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Returns the name, which consists of digits and one dot. It is the same on all ranks, and remains
// the same when a process calls init() again. The first rank that calls this function chooses the
// name. Errors: those of the Store.
Result<std::string> job_name(Store& store);

}  // namespace farandole
