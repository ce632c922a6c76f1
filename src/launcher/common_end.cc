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
  if (failed_node.failure.signal != 0) other_node_got_signal_ = true;
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

bool CommonEnd::pass_on_signal(const NodeFailure& own_failure, NodeLink& link) {
  if (is_over_ || link.outcome()) return false;
  if (other_failure_ || has_told_own_failure_) return other_node_got_signal_;
  tell_own_failure(own_failure, link);
  return true;
}

void CommonEnd::tell_own_end(const OwnEnd& own_end, NodeLink& link) {
  if (!std::exchange(has_told_own_end_, true)) link.report_end(own_end.exit_code, own_end.report);
}

// Returns whether a signal has asked the job to end, and no worker of another node is known to be
// the cause.
bool CommonEnd::has_signal_ended_job() const {
  if (other_failure_ && other_failure_->failure.is_root_cause()) return false;
  return requests_.last_signal != 0 || (other_failure_ && other_failure_->failure.signal != 0);
}

void CommonEnd::wait_for_cause(const OwnEnd& own_end, const std::function<bool()>& cause_is_known,
                               NodeLink& link, const WaitForNodes& wait) {
  tell_own_end(own_end, link);
  while (!cause_is_known() && !link.outcome() && requests_.may_wait() &&
         std::chrono::steady_clock::now() < wait_limit(own_end.grace))
    wait(wait_limit(own_end.grace));
}

// Returns the limit of all waits of a failed node. The first call begins this time. After a signal,
// the workers of the other nodes have the grace time to end.
TimePoint CommonEnd::wait_limit(Duration grace) {
  if (!wait_start_) wait_start_ = std::chrono::steady_clock::now();
  const bool is_after_signal = requests_.last_signal != 0 || other_node_got_signal_;
  return *wait_start_ + kOtherNodesTimeout + (is_after_signal ? grace : Duration());
}

int CommonEnd::wait_for_exit_code(const OwnEnd& own_end, NodeLink& link, const WaitForNodes& wait) {
  int exit_code = own_end.exit_code;
  tell_own_end(own_end, link);
  wait_for_all(own_end, link, wait);
  is_over_ = true;
  if (own_end.is_elastic && !other_failure_) other_failure_ = first_failure(other_ends_);
  if (exit_code == 0 && link.outcome() != true) {
    if (!own_end.node_0_reports || link.has_lost_node_0())
      user_output_.show_error("the workers of this node have succeeded, but the job has failed: " +
                              why_job_has_failed());
    exit_code = exit_code_of_failure();
  }
  if (const auto job_over = link.job_over()) {
    first_failed_node_ = static_cast<int>(job_over->first_failed_node);
    return static_cast<int>(job_over->exit_code);
  }
  if (!own_end.is_first_node) return exit_code;
  const bool is_own_first = is_own_failure_first(own_end.has_failed_itself);
  first_failed_node_ = is_own_first ? 0 : static_cast<int>(other_failure_->node);
  if (!is_own_first) exit_code = exit_code_of_first_failure(exit_code);
  if (link.outcome())
    link.tell(JobOver{.exit_code = static_cast<std::uint32_t>(exit_code),
                      .first_failed_node = static_cast<std::uint32_t>(*first_failed_node_)});
  return exit_code;
}

void CommonEnd::wait_for_all(const OwnEnd& own_end, const NodeLink& link,
                             const WaitForNodes& wait) {
  const TimePoint start = std::chrono::steady_clock::now();
  const bool has_failed = own_end.exit_code != 0;
  bool has_shown_notice = has_failed;
  while (!link.outcome() && requests_.may_wait()) {
    const TimePoint now = std::chrono::steady_clock::now();
    std::optional<TimePoint> limit;
    if (has_failed || other_failure_ || wait_start_) limit = wait_limit(own_end.grace);
    if (limit && now >= *limit) break;
    if (!has_shown_notice && now >= start + kNoticeDelay) {
      has_shown_notice = true;
      user_output_.show_notice(
          "all workers of this node have ended; waiting for those of the other nodes");
    }
    wait(limit.value_or(has_shown_notice ? now + kOtherNodesTimeout : start + kNoticeDelay));
  }
}

// Returns the exit code of a node whose workers have succeeded, but whose job has failed.
int CommonEnd::exit_code_of_failure() const {
  if (!has_signal_ended_job()) return 1;
  return 128 + (requests_.last_signal != 0 ? requests_.last_signal
                                           : static_cast<int>(other_failure_->failure.signal));
}

std::string CommonEnd::why_job_has_failed() const {
  if (requests_.last_signal != 0 && has_signal_ended_job())
    return signal_name(requests_.last_signal) + " has ended it";
  return other_failure_ ? other_failure_->failure.why : "the other nodes have not ended";
}

// Call it on node 0. Returns whether the exit code of this node counts, and not that of another
// node.
bool CommonEnd::is_own_failure_first(bool has_failed_itself) const {
  if (!other_failure_ || has_failed_itself) return true;
  return requests_.last_signal != 0 && has_signal_ended_job();
}

// Call it on node 0 if another node has failed first. Shows what that node says about its failure,
// and returns its exit code. If that node has not told a failure as its end, returns `exit_code`.
int CommonEnd::exit_code_of_first_failure(int exit_code) {
  const auto end =
      std::ranges::find(other_ends_, static_cast<int>(other_failure_->node), &NodeEnd::node);
  if (end == other_ends_.end() || end->exit_code == 0) return exit_code;
  user_output_.show_lines(end->report);
  return end->exit_code;
}

}  // namespace farandole
