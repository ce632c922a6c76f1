// The composition root: the only place that creates the parts of an engine and connects them.
// Constructors start no thread. When all parts exist, assemble() starts the threads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/groups.h"
#include "engine/progress_threads.h"
#include "engine/watch.h"
#include "farandole/engine.h"
#include "formation/formation.h"
#include "formation/host_network.h"
#include "formation/job_stores.h"
#include "formation/process_context.h"
#include "formation/timeline_job.h"
#include "rendezvous/local_store.h"
#include "stalls/stall_warnings.h"
#include "timeline/flight_record.h"
#include "timeline/timeline.h"

namespace farandole {

// All parts of an engine. C++ destroys members in reverse order, so the threads stop before the
// memory that they use is unmapped.
struct Engine::Parts {
  std::unique_ptr<const Clock> clock;
  std::unique_ptr<const Log> log;
  Stores stores;
  FlightMemory flight_memory;
  std::shared_ptr<ProcessContext> context;
  std::shared_ptr<Failpoint> failpoint;  // shared with the process context; null except in tests
  std::unique_ptr<Timeline> timeline;
  std::unique_ptr<FlightRecorder> recorder;
  std::unique_ptr<HostNetwork> network;  // null if the job cannot be on several hosts
  Formation formation;
  std::int64_t epoch = 0;                     // 0: the job is not elastic
  std::optional<ElasticGroup> elastic_group;  // for timelines
  std::unique_ptr<Channels> channels;         // null if all ranks are on this host
  std::unique_ptr<Watch> watch;
  // Null if `farandole run` or another engine of this host reports stalls.
  std::unique_ptr<StallWarnings> stall_warnings;
  std::unique_ptr<ProgressThreads> progress;
  std::unique_ptr<Groups> groups;
  std::once_flag leave_once;
  std::atomic<bool> abandoned = false;  // set if this process is a forked child
};

// Makes an engine and joins the job. `options.context` must be set. Tests give several ranks of one
// process the same MemoryStore. `network` may be null; then all ranks must be on this host. Errors:
// as Engine::create().
Result<std::unique_ptr<Engine>> assemble(const EngineOptions& options, Stores stores,
                                         std::unique_ptr<HostNetwork> network = nullptr);

}  // namespace farandole
