// How the job's secret reaches the workers. The user copies a file with the secret to all hosts.
// Each launcher passes the secret to its workers in sealed memory, which they inherit.
#pragma once

#include <string>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "network/tcp/job_secret.h"

namespace farandole {

// Makes a new secret in a new file with mode 0600. Errors: kFixCall if the file exists or cannot be
// made; kStop.
Status make_secret_file(const std::string& path);

// Returns memory that holds the secret and that no process can change.
Result<Descriptor> share_secret(const JobSecret& secret);
// Returns a new descriptor of the same memory for one worker. Its own read position is at the
// start. It is close-on-exec. Errors: kStop.
Result<Descriptor> secret_for_worker(const Descriptor& shared_secret);

}  // namespace farandole
