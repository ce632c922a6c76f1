// ElasticNode: one launcher's part in an elastic job. Node 0 decides who is in the group
// (FirstElasticNode). The other nodes tell node 0 what happens to their workers, and carry out its
// orders (OtherElasticNode).
//
// The launchers name workers by their slots. At the start of a job, the slot of a worker is its
// rank. A launcher names its own workers by their local ranks.
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
  struct StartOrder {
    int local_rank = 0;
    int number = 0;  // for FARANDOLE_ELASTIC_WORKER
  };
  // A new group was formed, so earlier failures of workers no longer count.
  bool group_formed = false;
  std::vector<std::string> notices{};  // lines for the user
  std::vector<StartOrder> starts{};    // start these workers
  std::vector<int> kills{};            // kill these workers, by local rank
  // The workers of this epoch must leave their group, because this member is lost with its node.
  // The process of the member may still run.
  std::optional<MemberLost> lost_member{};
  bool must_leave = false;  // the workers of this node did not leave in time
  std::string end{};        // why the job must end; empty: the job continues
};

// Only one thread may use an object of this class. No function blocks.
class ElasticNode {
 public:
  ElasticNode() = default;
  ElasticNode(const ElasticNode&) = delete;
  ElasticNode& operator=(const ElasticNode&) = delete;
  virtual ~ElasticNode() = default;

  // A worker of this node has ended and was reaped, or it could not be started. `how_it_ended` is
  // for example "worker 1 (pid 12) has exited …".
  virtual void worker_ended(int local_rank, bool succeeded, const std::string& how_it_ended,
                            TimePoint now) = 0;
  virtual void worker_stopped(int local_rank, TimePoint now) = 0;
  virtual void worker_continued(int local_rank) = 0;
  // Handles the events that the launchers of the other nodes have reported to this launcher.
  virtual void handle_events(const NodeEvents& news, TimePoint now) = 0;

  // Whether the job needs this worker. If such a worker fails, the job fails, unless the other
  // workers continue without it.
  virtual bool is_needed(int local_rank) const = 0;
  // Whether the worker was killed by an order, because it is not a member any more.
  virtual bool is_former_member(int local_rank) const = 0;
  // Whether no more workers will be started on this node.
  virtual bool is_over() const = 0;
  // Call it when this node ends. Returns whether the node leaves the job before the job ends,
  // because it was told to leave or cannot continue.
  virtual bool is_leaving_job() const = 0;
  // Tells node 0 that this node is about to leave. Returns false if this node is already about to
  // leave, or if the job is finishing. Also returns false on node 0, which cannot leave. If the
  // node has not left at the limit, advance() returns must_leave.
  virtual bool begin_to_leave(TimePoint limit) = 0;

  virtual ElasticOrders advance(TimePoint now) = 0;
  // The time at which advance() must be called again, even if nothing happens before.
  virtual std::optional<TimePoint> deadline() const = 0;

  // The number of the current epoch; 0 before the first one.
  virtual std::int64_t epoch() const = 0;
  // The slots of the members of the current epoch, by rank; empty before the first one.
  virtual const std::vector<int>& slots_by_rank() const = 0;

  // The rank of the worker in this slot; the slot itself if the worker has no rank.
  int rank_of(int slot) const;
  // If a worker's report blames a rank, replaces the rank with its slot in the current epoch.
  void replace_rank_by_slot(WorkerEnd& end) const;
};

}  // namespace farandole
