// Reads EngineOptions from the knobs in the environment.
#include <cstdlib>
#include <utility>

#include "base/foreign_launcher.h"
#include "base/knobs.h"
#include "base/try.h"
#include "farandole/engine.h"

namespace farandole {

Result<EngineOptions> EngineOptions::from_environment(bool topology_is_known) {
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  EngineOptions options;
  FARANDOLE_TRY(read_knobs(options, environment));
  if (!topology_is_known && !is_set(knob_named("FARANDOLE_RANK"), environment) &&
      !is_set(knob_named("FARANDOLE_SIZE"), environment)) {
    FARANDOLE_TRY_ASSIGN(auto foreign, find_foreign_job(environment));
    if (foreign) {
      options.topology = foreign->topology;
      options.rendezvous_id = std::move(foreign->rendezvous_id);
    }
  }
  options.timeline_path = timeline_path_of(options);
  return options;
}

}  // namespace farandole
