#include "launcher/worker_inheritance.h"

#include <utility>
#include <vector>

#include "base/try.h"
#include "jobs/job_sheet.h"
#include "timeline/flight_record.h"

namespace farandole {

Result<WorkerInheritance> WorkerInheritance::make(int local_rank, const std::string& name,
                                                  const Sources& sources) {
  WorkerInheritance made;
  FARANDOLE_TRY_ASSIGN(made.rendezvous, sources.store.add_client(name));
  FARANDOLE_TRY_ASSIGN(made.output, sources.output.add_worker(local_rank));
  FARANDOLE_TRY_ASSIGN(made.record,
                       Segment::create(kFlightRecordName, FlightRecorder::bytes_needed()));
  if (sources.worker_notices != nullptr) {
    // If one launcher of several ends, the others go on without its workers.
    const bool may_outlive = sources.nodes == nullptr;
    FARANDOLE_TRY_ASSIGN(made.launcher,
                         sources.worker_notices->add_worker(
                             local_rank, may_outlive ? made.output.ours : std::vector<int>()));
  }
  if (sources.nodes != nullptr) {
    FARANDOLE_TRY_ASSIGN(made.secret, sources.nodes->secret_for_worker());
  }
  return made;
}

}  // namespace farandole
