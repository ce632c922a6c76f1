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
  FARANDOLE_TRY_ASSIGN(const Knobs knobs, Knobs::read(environment));
  const auto number = [&](Knob knob) { return static_cast<int>(knobs.integer(knob)); };
  EngineOptions options;
  options.topology = {.rank = number(Knob::kRank),
                      .size = number(Knob::kSize),
                      .local_rank = number(Knob::kLocalRank),
                      .local_size = number(Knob::kLocalSize),
                      .cross_rank = number(Knob::kCrossRank),
                      .cross_size = number(Knob::kCrossSize)};
  options.rendezvous_descriptor = number(Knob::kRendezvousDescriptor);
  if (!topology_is_known && !knobs.is_set(Knob::kRank) && !knobs.is_set(Knob::kSize)) {
    FARANDOLE_TRY_ASSIGN(auto foreign, find_foreign_launchers_job(environment));
    if (foreign) {
      options.topology = foreign->topology;
      options.rendezvous_id = std::move(foreign->rendezvous_id);
    }
  }
  options.start_timeout = std::chrono::seconds(knobs.integer(Knob::kStartTimeout));
  options.stall_limit = std::chrono::seconds(knobs.integer(Knob::kStallLimit));
  options.flight_record_descriptor = number(Knob::kFlightRecordDescriptor);
  options.bucket_bytes = static_cast<std::size_t>(knobs.integer(Knob::kBucketBytes));
  for (const KnobRow& row : knob_rows())
    if (row.is_of_frontends) options.frontend_settings.emplace(row.name, knobs.integer(row.knob));
  options.heap_bytes = static_cast<std::size_t>(knobs.integer(Knob::kHeapBytes));
  options.timeline_path = knobs.text(Knob::kTimeline);
  // In Horovod, DYNAMIC allows start_timeline() later. Here that is always allowed.
  if (options.timeline_path == "DYNAMIC") options.timeline_path.clear();
  options.timeline_bytes = static_cast<std::size_t>(knobs.integer(Knob::kTimelineBytes));
  options.timeline_mark_cycles = knobs.integer(Knob::kTimelineMarkCycles) != 0;
  options.log_level = knobs.text(Knob::kLogLevel);
  options.log_hide_time = knobs.integer(Knob::kLogHideTime) != 0;
  return options;
}

}  // namespace farandole
