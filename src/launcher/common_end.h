// CommonEnd: how a job over several nodes ends. The launcher remembers which other node has failed
// first, and waits until all nodes have ended. So all launchers return the exit code of the first
// failure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/time_point.h"
#include "nodes/node_link.h"

namespace farandole {

// Why this launcher must end: a signal, or the loss of its foreground process.
struct EndRequests {
  int last_signal = 0;  // the last signal that asked the job to end; 0: none
  bool foreground_is_gone = false;
  // A signal arrived after the workers of this node had ended, and it was not passed on to the
  // other nodes. So do not wait any longer.
  bool skip_waits = false;

  bool may_wait() const { return !foreground_is_gone && !skip_waits; }
};

// Waits for events, at the latest until the given time, and handles the events.
using WaitForNodes = std::function<void(TimePoint)>;

// Call it on node 0. `nodes` is the number of nodes of the job. Waits until all other nodes have
// disconnected, or until the limit.
void wait_until_others_are_gone(const NodeLink& link, int nodes, TimePoint limit,
                                const WaitForNodes& wait);

// Only one thread may use it. Functions that take a `link` may be called only after
// link.start_message() is set.
class CommonEnd {
 public:
  // Functions that show lines to the user.
  struct UserOutput {
    std::function<void(const std::string&)> show_notice;
    std::function<void(const std::string&)> show_error;
    std::function<void(const std::vector<std::string>&)> show_lines;
  };
  // `requests` must outlive this object.
  CommonEnd(const EndRequests& requests, UserOutput user_output)
      : requests_(requests), user_output_(std::move(user_output)) {}

  // Call it when another node's part of the job fails.
  void node_failed(const FailedNode& failed_node);
  // Call it when other nodes have ended.
  void nodes_ended(std::vector<NodeEnd> ends);
  // Call it when a group was formed without the nodes that have ended. Their failures no longer
  // count.
  void failures_survived() { other_ends_.clear(); }
  // The failure of the other node that has failed first.
  const std::optional<FailedNode>& other_failure() const { return other_failure_; }

  // Whether the failure of a worker of `node` may be the first one of the job. Call it after
  // wait_for_exit_code().
  bool may_be_first_failed_node(int node) const {
    return !first_failed_node_ || *first_failed_node_ == node;
  }

  // Tells the other nodes once that this node's part of the job fails, so that they need not wait
  // for this node.
  void tell_own_failure(const std::optional<NodeFailure>& own_failure, NodeLink& link);
  // Passes on a signal that arrived after the workers of this node had ended. Returns whether the
  // other nodes now end because of a signal, so that this node should wait for them.
  bool pass_on_signal(const NodeFailure& own_failure, NodeLink& link);

  // How this node's part of the job has ended.
  struct OwnEnd {
    int exit_code = 0;
    std::vector<std::string> report{};  // lines for the user, if this node has failed
    bool has_failed_itself = false;
    bool is_first_node = false;
    bool is_elastic = false;
    bool node_0_reports = false;  // whether node 0 tells the user how the job failed
    Duration grace{};             // how long workers may run after a signal
  };
  // Call it if a rank of another node has made this node fail. It tells the other nodes that this
  // node has ended. Then it waits until `cause_is_known`, or until all nodes have ended. The wait
  // has a time limit.
  void wait_for_cause(const OwnEnd& own_end, const std::function<bool()>& cause_is_known,
                      NodeLink& link, const WaitForNodes& wait);
  // Waits until all nodes have ended, so that each launcher knows how the job ended, and returns
  // the exit code of the first failure. While node 0 waits, it serves the job's Store. After the
  // wait, node 0 tells the other launchers the exit code. All launchers must return the same exit
  // code, because mpirun returns the first one that it sees. If this node has failed, one time
  // limit applies to this function and wait_for_cause() together. If a signal has ended the job,
  // the limit includes the grace time.
  int wait_for_exit_code(const OwnEnd& own_end, NodeLink& link, const WaitForNodes& wait);

 private:
  void tell_own_end(const OwnEnd& own_end, NodeLink& link);
  TimePoint wait_limit(Duration grace);
  void wait_for_all(const OwnEnd& own_end, const NodeLink& link, const WaitForNodes& wait);
  bool has_signal_ended_job() const;
  int exit_code_of_failure() const;
  std::string why_job_has_failed() const;
  bool is_own_failure_first(bool has_failed_itself) const;
  int exit_code_of_first_failure(int exit_code);

  const EndRequests& requests_;
  UserOutput user_output_;
  std::optional<FailedNode> other_failure_;
  std::vector<NodeEnd> other_ends_;  // node 0: how the other nodes have ended
  bool has_told_own_failure_ = false;
  bool has_told_own_end_ = false;
  std::optional<int> first_failed_node_;  // set if node 0 has determined it
  bool other_node_got_signal_ = false;
  // When the waits of a failed node began; all waits together have one limit.
  std::optional<TimePoint> wait_start_;
  bool is_over_ = false;  // wait_for_exit_code() has returned
};

}  // namespace farandole
