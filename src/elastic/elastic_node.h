// ElasticNode: one launcher's part in an elastic job. Node 0 decides who is in the group
// (FirstElasticNode). The other nodes tell it what happens to their workers, and carry out its
// orders (OtherElasticNode).
//
// Workers are named by their slots, which are the ranks of the first workers; a launcher names its
// own workers by local ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/time_point.h"
#include "diagnosis/failure_box.h"
#include "nodes/node_link.h"
#include "nodes/node_messages.h"

namespace farandole {

// What a launcher has to do now, in this order.
struct ElasticOrders {
  struct Start {
    int local_rank = 0;
    int number = 0;  // for FARANDOLE_ELASTIC_WORKER
  };
  bool group_formed = false;           // the others go on without the workers that have failed
  std::vector<std::string> notices{};  // lines for the user
  std::vector<Start> starts{};         // start these workers
  std::vector<int> kills{};            // kill these workers, by local rank
  // The workers of this epoch shall leave their group, because this member is lost with its node,
  // perhaps without having ended.
  std::optional<MemberLost> lost_member{};
  bool must_leave = false;  // the time to leave at a commit is over
  std::string end{};        // why the job must end; empty: it goes on
};

// Only one thread may use it. No function blocks.
class ElasticNode {
 public:
  ElasticNode() = default;
  ElasticNode(const ElasticNode&) = delete;
  ElasticNode& operator=(const ElasticNode&) = delete;
  virtual ~ElasticNode() = default;

  // A worker that was ordered has ended, and was reaped, or could not be started. `how` says how it
  // ended: "worker 1 (pid 12) has exited …".
  virtual void worker_ended(int local_rank, bool succeeded, const std::string& how,
                            TimePoint now) = 0;
  virtual void worker_stopped(int local_rank, TimePoint now) = 0;
  virtual void worker_continued(int local_rank) = 0;
  // What the launchers of the other nodes have told this one, apart from other messages.
  virtual void take_news(const NodeNews& news, TimePoint now) = 0;

  // Whether the job needs this worker: its failure is one of the job, unless others go on.
  virtual bool matters(int local_rank) const = 0;
  // Whether the worker was ordered to be killed because it is not a member any more.
  virtual bool is_superfluous(int local_rank) const = 0;
  // Whether no more workers will be started on this node.
  virtual bool is_over() const = 0;
  // Whether this node leaves the job before its end: it was told to leave, or can go on no longer.
  virtual bool leaves_job() const = 0;
  // Tells the others that this node is about to leave. Returns false for node 0, which cannot, and
  // if it is leaving already. If it has not left at the limit, advance() says so.
  virtual bool leave(TimePoint limit) = 0;

  virtual ElasticOrders advance(TimePoint now) = 0;
  // When to call advance() again, even if nothing happens.
  virtual std::optional<TimePoint> deadline() const = 0;

  // The number of the current epoch; 0 before the first one.
  virtual std::int64_t epoch() const = 0;
  // The slots of the members of the current epoch, by rank; empty before the first one.
  virtual const std::vector<int>& slots_by_rank() const = 0;

  // The rank that the worker of this slot has; the slot itself if it has none.
  int rank_of(int slot) const;
  // Replaces the rank that a report blames, which is one of the epoch, by the slot.
  void use_slots(WorkerEnd& end) const;
};

}  // namespace farandole
