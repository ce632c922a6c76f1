// Reads EngineOptions from the knobs in the environment.
#include <cstdlib>
#include <utility>

#include "base/format.h"
#include "base/knobs.h"
#include "base/try.h"
#include "environment/foreign_launcher.h"
#include "farandole/engine.h"

namespace farandole {

Result<EngineOptions> EngineOptions::from_environment(bool topology_is_known) {
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  EngineOptions options;
  FARANDOLE_TRY(read_knobs(options, environment));
  options.timeline_path = timeline_path_of(options);
  const bool has_our_launcher = is_set(knob_named("FARANDOLE_RANK"), environment) ||
                                is_set(knob_named("FARANDOLE_SIZE"), environment);
  if (has_our_launcher) {
    const bool has_launcher_process = options.rendezvous_descriptor >= 0;
    if (!has_launcher_process && !options.secret_file.empty()) {
      options.rendezvous_id = "ranks";
      options.serves_job_store = options.topology.rank == 0;
    }
    return options;
  }
  if (topology_is_known && options.secret_file.empty()) return options;
  FARANDOLE_TRY_ASSIGN(auto foreign_job, find_foreign_job(environment));
  if (!foreign_job) {
    if (!topology_is_known) options.job_store.clear();  // this process is the whole job
    return options;
  }
  if (options.job_store.empty()) options.job_store = std::move(foreign_job->job_store);
  options.serves_job_store = foreign_job->is_on_several_hosts && foreign_job->topology.rank == 0;
  if (topology_is_known) return options;
  if (foreign_job->is_on_several_hosts && options.job_store.empty()) {
    return Status::fix_call(format_text(
        "rank {} of {} does not know where the ranks meet, because the launcher does not say on "
        "which host rank 0 is: set FARANDOLE_JOB_STORE=HOST:PORT for all ranks, with the host of "
        "rank 0 and a free port there",
        foreign_job->topology.rank, foreign_job->topology.size));
  }
  if (!foreign_job->is_on_several_hosts) options.job_store.clear();
  options.topology = foreign_job->topology;
  options.rendezvous_id = std::move(foreign_job->rendezvous_id);
  return options;
}

}  // namespace farandole
