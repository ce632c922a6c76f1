// A name of the job that no other job has. For things that outlive the job, such as files.
#pragma once

#include <string>

#include "farandole/status.h"
#include "rendezvous/store.h"

namespace farandole {

// Letters, digits and dots. The same on all ranks, also after a process has called init again. The
// first rank that asks makes it up. Errors: those of the Store.
Result<std::string> job_name(Store& store);

}  // namespace farandole
