// WorkerInheritance: the descriptors that a new worker inherits, and what the launcher keeps of
// them.
#pragma once

#include <memory>
#include <string>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "launcher/job_nodes.h"
#include "launcher/worker_notices.h"
#include "output/job_output.h"
#include "rendezvous/store_server.h"
#include "transport/shm/segment.h"
#include "workers/worker_environment.h"

namespace farandole {

struct WorkerInheritance {
  Descriptor rendezvous;
  Descriptor launcher;  // invalid: the job is not elastic
  Descriptor secret;    // invalid: the job is on this host only
  JobOutput::WorkerEnds output;
  std::shared_ptr<Segment> record;  // the worker's flight record; the WorkerTable owns it, too

  // The objects that make the descriptors.
  struct Sources {
    StoreServer& store;
    JobOutput& output;
    const JobNodes* nodes = nullptr;          // null: the job is on this host only
    WorkerNotices* worker_notices = nullptr;  // null: the job is not elastic
  };
  // `name` is the worker's name in messages. Errors: kStop.
  static Result<WorkerInheritance> create(int local_rank, const std::string& name,
                                          const Sources& sources);

  WorkerDescriptors descriptors() const {
    return {.rendezvous = rendezvous.get(),
            .flight_record = record->descriptor().get(),
            .launcher = launcher.get(),
            .secret = secret.get()};
  }
};

}  // namespace farandole
