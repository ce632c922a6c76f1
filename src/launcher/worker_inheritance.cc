#include "launcher/worker_inheritance.h"

#include <utility>
#include <vector>

#include "base/try.h"
#include "jobs/job_sheet.h"
#include "timeline/flight_record.h"

namespace farandole {

Result<WorkerInheritance> WorkerInheritance::create(int local_rank, const std::string& name,
                                                    const Sources& sources) {
  WorkerInheritance inheritance;
  FARANDOLE_TRY_ASSIGN(inheritance.rendezvous, sources.store.add_client(name));
  FARANDOLE_TRY_ASSIGN(inheritance.output, sources.output.add_worker(local_rank));
  FARANDOLE_TRY_ASSIGN(inheritance.record,
                       Segment::create(kFlightRecordName, FlightRecorder::bytes_needed()));
  if (sources.worker_notices != nullptr) {
    // If one of several launchers ends, the other launchers continue the job without the workers of
    // this launcher. So these workers must end together with their launcher.
    const bool may_outlive = sources.nodes == nullptr;
    FARANDOLE_TRY_ASSIGN(inheritance.launcher, sources.worker_notices->add_worker(
                                                   local_rank, may_outlive ? inheritance.output.ours
                                                                           : std::vector<int>()));
  }
  if (sources.nodes != nullptr) {
    FARANDOLE_TRY_ASSIGN(inheritance.secret, sources.nodes->secret_for_worker());
  }
  return inheritance;
}

}  // namespace farandole
