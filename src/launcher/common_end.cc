#include "launcher/common_end.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/process_end.h"

namespace farandole {
namespace {

// How long a failed node waits for the end of the other nodes, so that all nodes learn how the job
// ended.
constexpr auto kOtherNodesTimeout = std::chrono::seconds(20);
// If the workers of a node have succeeded, the node shows after this time which nodes it waits for.
constexpr auto kNoticeDelay = std::chrono::seconds(5);

}  // namespace

void wait_until_others_are_gone(const NodeLink& link, int nodes, TimePoint limit,
                                const WaitForNodes& wait) {
  const auto any_is_connected = [&] {
    for (int node = 1; node < nodes; ++node)
      if (link.is_connected(node)) return true;
    return false;
  };
  while (any_is_connected() && std::chrono::steady_clock::now() < limit) wait(limit);
}

void CommonEnd::node_failed(const FailedNode& failed_node) {
  if (!other_failure_ || failed_node.failure.has_caused(other_failure_->failure))
    other_failure_ = failed_node;
}

void CommonEnd::nodes_ended(std::vector<NodeEnd> ends) {
  std::ranges::move(ends, std::back_inserter(other_ends_));
}

void CommonEnd::tell_own_failure(const std::optional<NodeFailure>& own_failure, NodeLink& link) {
  if (has_told_own_failure_ || !own_failure) return;
  has_told_own_failure_ = true;
  link.report_failing(*own_failure);
}

void CommonEnd::tell_own_end(const OwnEnd& own_end, NodeLink& link) {
  if (!std::exchange(has_told_own_end_, true)) link.report_end(own_end.exit_code, own_end.report);
}

void CommonEnd::wait_for_cause(const OwnEnd& own_end, const std::function<bool()>& cause_is_known,
                               NodeLink& link, const WaitForNodes& wait) {
  tell_own_end(own_end, link);
  wait_limit_ = std::chrono::steady_clock::now() + kOtherNodesTimeout;
  while (!cause_is_known() && !link.outcome() && requests_.may_wait() &&
         std::chrono::steady_clock::now() < *wait_limit_)
    wait(*wait_limit_);
}

int CommonEnd::wait_for_exit_code(const OwnEnd& own_end, NodeLink& link, const WaitForNodes& wait) {
  int exit_code = own_end.exit_code;
  tell_own_end(own_end, link);
  wait_for_all(exit_code != 0, link, wait);
  if (own_end.is_elastic && !other_failure_) other_failure_ = first_failure(other_ends_);
  if (exit_code == 0 && link.outcome() != true) {
    if (!own_end.node_0_reports || link.has_lost_node_0())
      user_output_.show_error("the workers of this node have succeeded, but the job has failed: " +
                              why_job_has_failed());
    exit_code = requests_.skip_waits ? 128 + requests_.last_signal : 1;
  }
  if (!own_end.is_first_node) return link.job_exit_code().value_or(exit_code);
  exit_code = exit_code_of_first_failure(exit_code, own_end.has_failed_itself);
  if (link.outcome()) link.tell(JobOver{static_cast<std::uint32_t>(exit_code)});
  return exit_code;
}

void CommonEnd::wait_for_all(bool has_failed, const NodeLink& link, const WaitForNodes& wait) {
  const TimePoint start = std::chrono::steady_clock::now();
  bool has_shown_notice = has_failed;
  while (!link.outcome() && requests_.may_wait()) {
    if (!wait_limit_ && (has_failed || other_failure_))
      wait_limit_ = std::chrono::steady_clock::now() + kOtherNodesTimeout;
    if (wait_limit_ && std::chrono::steady_clock::now() >= *wait_limit_) break;
    if (!has_shown_notice && std::chrono::steady_clock::now() >= start + kNoticeDelay) {
      has_shown_notice = true;
      user_output_.show_notice(
          "all workers of this node have ended; waiting for those of the other nodes");
    }
    wait(wait_limit_.value_or(has_shown_notice
                                  ? std::chrono::steady_clock::now() + kOtherNodesTimeout
                                  : start + kNoticeDelay));
  }
}

std::string CommonEnd::why_job_has_failed() const {
  if (other_failure_) return other_failure_->failure.why;
  if (requests_.skip_waits) return signal_name(requests_.last_signal) + " has ended it";
  return "the other nodes have not ended";
}

// If another node has failed first, node 0 shows what that node says about it, and returns that
// node's exit code.
int CommonEnd::exit_code_of_first_failure(int exit_code, bool has_failed_itself) {
  if (!other_failure_ || requests_.last_signal != 0 || has_failed_itself) return exit_code;
  const auto end =
      std::ranges::find(other_ends_, static_cast<int>(other_failure_->node), &NodeEnd::node);
  if (end == other_ends_.end() || end->exit_code == 0) return exit_code;
  user_output_.show_lines(end->report);
  return end->exit_code;
}

}  // namespace farandole
