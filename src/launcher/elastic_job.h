// ElasticJob: connects the decisions about the members of an elastic job (src/membership) with its
// workers. The workers ask for their ranks in the Store, and get the answers there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "diagnosis/failure_box.h"
#include "membership/membership.h"
#include "rendezvous/store_server.h"

namespace farandole {

// Only one thread may use it. Workers are named by their slots.
class ElasticJob {
 public:
  // `store` must outlive this object.
  ElasticJob(const Membership::Options& options, StoreServer& store);

  // Returns the number of the next worker in this slot, for FARANDOLE_ELASTIC_WORKER.
  int next_number(int slot);
  void worker_started(int slot, TimePoint now) { membership_.worker_started(slot, now); }
  // A decision to start a worker in this slot could not be carried out. It counts as a failure.
  void could_not_start(int slot, TimePoint now);
  // `how` says how it ended: "rank 1 (pid 12) has exited …".
  void worker_ended(int slot, bool succeeded, const std::string& how, TimePoint now);
  void worker_stopped(int slot, TimePoint now) { membership_.worker_stopped(slot, now); }
  void worker_continued(int slot) { membership_.worker_continued(slot); }

  // See Membership.
  bool matters(int slot) const { return membership_.matters(slot); }
  bool is_superfluous(int slot) const { return membership_.is_superfluous(slot); }
  // Reads what the workers have written to the Store, and decides. If a group is formed, its
  // members get their answers.
  Membership::Decisions advance(TimePoint now);
  std::optional<TimePoint> deadline() const { return membership_.deadline(); }

  // The slots of the members of the current epoch, by rank.
  const std::vector<int>& slots_by_rank() const { return membership_.epoch().workers; }
  // The rank that the worker of this slot has, or had last; the slot itself if it never had one.
  int rank_of(int slot) const;
  // Replaces the ranks that a report blames, which are those of the epoch, by slots.
  void use_slots(WorkerEnd& end) const;

 private:
  struct Worker {
    int number = -1;
    bool runs = false;
    std::int64_t epoch = 0;     // in which it was last
    std::optional<int> rank{};  // in that epoch
  };

  void give_ranks(const Epoch& epoch);

  Membership membership_;
  StoreServer& store_;
  std::vector<Worker> workers_;  // by slot
  int next_number_ = 0;
};

}  // namespace farandole
