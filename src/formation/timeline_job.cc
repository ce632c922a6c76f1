#include "formation/timeline_job.h"

#include <chrono>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/try.h"
#include "rendezvous/clock_offset.h"
#include "rendezvous/job_name.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

// Returns the time from which the timelines count. It is the same on all ranks of the job, so that
// the times in the files of several hosts agree.
Result<TimePoint> timeline_zero(Store& store) {
  FARANDOLE_TRY_ASSIGN(const TimePoint now, store.clock());
  ByteWriter writer;
  writer.put(nanoseconds_of(now));
  FARANDOLE_TRY_ASSIGN(const Bytes value, store.set_if_new(keys::timeline_zero(), writer.take()));
  return TimePoint(std::chrono::nanoseconds(ByteReader(value).get<std::int64_t>()));
}

}  // namespace

Result<Timeline::Job> timeline_job(const Formation& formation, Store& store,
                                   const std::optional<ElasticGroup>& elastic) {
  Timeline::Job job{.engine_number = formation.epoch};
  if (elastic) {
    const RankTopology& topology = formation.topology;
    job.name = elastic->job.name;
    job.group = {.epoch = elastic->epoch, .rank = topology.rank, .size = topology.size};
    if (!elastic->may_have_other_hosts) return job;
    job.zero = elastic->job.zero;
  } else {
    FARANDOLE_TRY_ASSIGN(job.name, job_name(store));
    if (formation.hosts() == 1) return job;
    FARANDOLE_TRY_ASSIGN(job.zero, timeline_zero(store));
  }
  FARANDOLE_TRY_ASSIGN(const ClockOffset clock, measure_clock_offset(store));
  job.clock_offset = clock.offset;
  job.clock_error = clock.error;
  return job;
}

}  // namespace farandole
