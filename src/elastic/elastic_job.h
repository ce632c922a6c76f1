// ElasticJob: connects the decisions about the members of an elastic job (src/membership) with its
// workers. The workers ask for their ranks in the job's Store, and get the answers there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "membership/membership.h"
#include "rendezvous/store_server.h"

namespace farandole {

// If the formation of this epoch is not complete, makes it fail, because a member has ended.
// `how_it_ended` is as in ElasticNode::worker_ended(). In a job over several nodes, call this for
// the job's Store and for the Store of the member's node.
void fail_formation(StoreServer& store, std::int64_t epoch, const std::string& how_it_ended);

// Only one thread may use this class. The functions name workers by their slots.
class ElasticJob {
 public:
  // `store` must outlive this object. The first worker gets the number `first_number`, and each
  // later worker the next number.
  ElasticJob(const Membership::Options& options, StoreServer& store, int first_number = 0);

  void add_slots(int count);
  // Call it when a worker is started in this slot. Returns the worker's number, for
  // FARANDOLE_ELASTIC_WORKER.
  int worker_started(int slot, TimePoint now);
  // Call it for a worker that a former launcher of node 0 has started and that still runs.
  void worker_found(int slot, int number, TimePoint now);
  // `how_it_ended` is for example "worker 1 (pid 12) has exited …".
  void worker_ended(int slot, bool succeeded, const std::string& how_it_ended, TimePoint now);
  void worker_stopped(int slot, TimePoint now) { membership_.worker_stopped(slot, now); }
  void worker_continued(int slot) { membership_.worker_continued(slot); }

  // Reads the requests that the workers have written to the Store, and decides what to do. If a
  // group is formed, its members get their ranks as answers.
  Membership::Decisions advance(TimePoint now);

  Membership& membership() { return membership_; }
  const Membership& membership() const { return membership_; }
  bool has_running_worker(int slot) const { return worker(slot).is_running; }
  int number_of(int slot) const { return worker(slot).number; }

 private:
  struct Worker {
    int number = -1;
    bool is_running = false;
    std::int64_t epoch = 0;  // the epoch that the worker had left when it last asked for a rank
  };

  const Worker& worker(int slot) const { return workers_.at(static_cast<std::size_t>(slot)); }
  void give_ranks(const Epoch& epoch);
  void publish_member_loss(const std::string& how_it_ended);

  Membership membership_;
  StoreServer& store_;
  std::vector<Worker> workers_;  // by slot
  int next_number_;
};

}  // namespace farandole
