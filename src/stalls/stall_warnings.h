// StallWarnings: warns about stalls in a job that another launcher than `farandole run` has
// started. The engine of the lowest rank of each host reads the flight records of all ranks of its
// host. The engine of rank 0 decides whether a call is stalled. The other engines that read flight
// records send them to rank 0 through the job's Store.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "base/time_point.h"
#include "diagnosis/job_snapshot.h"
#include "diagnosis/stall_watch.h"
#include "farandole/status.h"
#include "formation/formation.h"
#include "rendezvous/store.h"

namespace farandole {

class StallWarnings {
 public:
  // Shows one line to the user.
  using ShowLine = std::function<void(const std::string& line)>;

  // This rank must be the lowest rank of its host, and must have the flight records of all ranks of
  // the host. `warn_after` is more than zero. `reports` is null if all ranks are on this host. The
  // formation and the Store must outlive this object.
  StallWarnings(const Formation& formation, Store* reports, Duration warn_after,
                ShowLine show_line);
  ~StallWarnings();  // calls stop()
  StallWarnings(const StallWarnings&) = delete;
  StallWarnings& operator=(const StallWarnings&) = delete;

  // Starts the thread "farandole-stall". Errors: kStop.
  Status start();
  // Ends the thread; idempotent. Does not wait until the Store has answered a report.
  void stop();

 private:
  struct RemoteWorker {
    std::uint64_t report_number = 0;  // the number of the worker's last report
    TimePoint received_at{};          // when this rank first saw that report
    std::optional<WatchedWorker> worker;
  };

  void run();
  void check(TimePoint now);
  void report_stalls(TimePoint now);
  std::vector<WatchedWorker> local_workers() const;
  void publish(TimePoint now);
  // Returns false if the last report of a rank is missing or old.
  bool read_reports(TimePoint now);
  void warn_about_missing_reports(TimePoint now);
  void show_stack_command(int rank, const WatchedWorker& worker) const;
  std::vector<std::string> report_keys(bool for_this_host) const;
  bool detects_stalls() const { return formation_.topology.rank == 0; }

  const Formation& formation_;
  Store* const reports_;
  StallWatch watch_;
  // An engine publishes a report at each interval of `watch_`, unless its process is stopped or its
  // host is overloaded. Reports that are older than `report_age_max_` are not used.
  const Duration report_age_max_;
  const ShowLine show_line_;
  std::uint64_t reports_published_ = 0;
  bool store_has_failed_ = false;  // at the last publish()
  std::vector<RemoteWorker>
      remote_workers_;  // by rank; used by rank 0 for the ranks of other hosts
  bool missing_reports_shown_ = false;
  Guarded<bool> stop_requested_{false};
  std::thread thread_;
};

}  // namespace farandole
