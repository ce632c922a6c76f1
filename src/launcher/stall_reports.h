// StallReports: warns the user about stalls of a job, with the stacks of the ranks that cause them.
// The launcher of node 0 does this for all nodes. At intervals, it asks the other launchers what
// their workers do. When all have answered, it looks for stalls. `farandole status` shows the
// answers, too.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "diagnosis/job_snapshot.h"
#include "diagnosis/stall_watch.h"
#include "jobs/worker_reports.h"
#include "launcher/stack_capture.h"
#include "nodes/node_layout.h"
#include "nodes/node_link.h"

namespace farandole {

// Only one thread may use it.
class StallReports {
 public:
  // Shows one line to the user.
  using ShowLine = std::function<void(const std::string& line)>;

  // `stacks` captures the stacks of workers of this node.
  StallReports(Duration warn_after, StackCapture stacks, ShowLine show)
      : watch_(warn_after), stacks_(std::move(stacks)), show_(std::move(show)) {}

  struct OtherNodes {
    NodeLink* link = nullptr;          // null if the job is on this node only
    WorkerReports* reports = nullptr;  // where node 0 keeps the answers; null on other nodes
  };
  struct Workers {
    std::function<std::vector<WatchedWorker>()> of_this_node;  // returns this node's workers
    // Returns the slots of the members of an elastic job by rank; null if every rank equals its
    // slot. The slots are numbered node by node, and within a node by local rank.
    std::function<std::vector<int>()> slots_by_rank{};
  };
  // Call it when the workers have started.
  void begin(const NodeLayout& layout, const OtherNodes& others, Workers workers, TimePoint now);
  // Call it when a node has left or joined the job. If answers were missing, the next check() asks
  // again.
  void nodes_changed(const NodeLayout& layout) {
    layout_ = layout;
    answers_.clear();
    has_shown_missing_reports_ = false;
  }

  // These functions call the functions of StallWatch that have the same names.
  void set_warn_after(std::int64_t seconds) { watch_.set_warn_after(seconds); }
  void job_continued(TimePoint now) { watch_.job_continued(now); }

  // When to call check() again; empty if this launcher has nothing to check.
  std::optional<TimePoint> next_check() const;
  void check(TimePoint now);
  // Handles a question of node 0, or an answer to a question of ours.
  void handle(const NodeMessage& message, TimePoint now);

  // Call it when the poller reports a stack, and at the deadline.
  void show_stack(TimePoint now);
  std::optional<TimePoint> stack_deadline() const { return stacks_.deadline(); }
  void stop() { stacks_.stop(); }

 private:
  void ask_other_nodes(TimePoint now);
  void store_report(const WorkerReport& report, TimePoint now);
  void show_stalls(const std::vector<WatchedWorker>& by_slot, TimePoint now);
  void show_stalls_if_complete(TimePoint now);
  std::vector<int> slots() const;
  std::optional<std::size_t> local_rank_of(int rank) const;
  void request_stacks(const std::vector<int>& ranks);
  void request_own_stacks(const std::vector<int>& ranks);
  void pass_on(const StackReport& stack);
  void show_stack_lines(const StackReport& stack);
  std::vector<std::uint32_t> silent_nodes() const;

  StallWatch watch_;
  StackCapture stacks_;
  ShowLine show_;
  NodeLayout layout_;
  OtherNodes others_;
  Workers workers_;
  TimePoint last_check_{};
  // On node 0: the answers of the other nodes, by slot. Empty while no answers are expected.
  std::vector<std::optional<WatchedWorker>> answers_;
  int missing_answers_ = 0;
  TimePoint asked_at_{};
  bool has_shown_missing_reports_ = false;  // since the last question
  // A failure of py-spy is reported once, because py-spy fails for all ranks in the same way.
  bool has_reported_failure_ = false;
};

}  // namespace farandole
