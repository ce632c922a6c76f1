// The composition root of the engine: the one place where the parts of an engine are chosen and put
// together. Constructors start nothing; start() does, at the end.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/formation.h"
#include "engine/groups.h"
#include "engine/process_context.h"
#include "engine/progress_threads.h"
#include "engine/watch.h"
#include "farandole/engine.h"
#include "rendezvous/store.h"
#include "timeline/flight_record.h"
#include "timeline/timeline.h"

namespace farandole {

// Everything that an engine consists of. Destroyed from the end: first the threads stop, then the
// memory that they used goes.
struct Engine::Parts {
  RankTopology topology;
  std::unique_ptr<const Clock> clock;
  std::unique_ptr<const Log> log;
  std::shared_ptr<Store> store;  // shared by the ranks of one process, if there are several
  FlightMemory flight_memory;
  std::unique_ptr<Timeline> timeline;
  std::unique_ptr<FlightRecorder> recorder;
  Formation formation;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<ProgressThreads> progress;
  std::unique_ptr<Groups> groups;
  std::once_flag left;
  std::atomic<bool> abandoned = false;  // we are a forked child
};

// The options have a context. The caller chooses the Store: several members in one process share a
// MemoryStore.
Result<std::unique_ptr<Engine>> assemble(const EngineOptions& options,
                                         std::shared_ptr<Store> store);

// The Store that the options, which have a context, ask for: the launcher's, or one of our own for
// a job of one.
Result<std::shared_ptr<Store>> choose_store(const EngineOptions& options);

}  // namespace farandole
