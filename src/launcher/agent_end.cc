// The end of an agent's job.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/process_end.h"
#include "diagnosis/failure_box.h"
#include "launcher/agent_loop.h"
#include "workers/process_tree.h"

namespace farandole {

// If the driver is lost, workers of other nodes may still use the Store of this launcher. So this
// launcher serves its Store until those workers have ended.
void Agent::serve_until_others_have_ended() {
  if (setup_.options.workers > 0 || !driver_loss_.is_lost()) return;
  wait_until_others_are_gone(nodes_->link(), layout_.nodes(), now() + driver_loss_.time_left(now()),
                             [this](TimePoint limit) { wait_with_nodes(limit); });
}

void Agent::handle_closed_output() {
  if (supervision_->ends_at_next_commit() || driver_loss_.is_lost()) return;
  // The driver reads our output until the driver ends. So closed output means that the driver is
  // lost.
  if (elastic_ && setup_.options.has_driver) return record_driver_loss();
  if (requests_.last_signal == 0) requests_.last_signal = SIGPIPE;
  perform(supervision_->signal_received(SIGPIPE, now()));
}

// After all workers have succeeded, waits for processes that they have left behind. Such a process,
// for example `tee log`, may not have written its last lines yet.
void Agent::wait_for_leftovers(TimePoint deadline) {
  while (has_descendants() && now() < deadline && requests_.may_wait()) {
    for (const std::uint64_t tag : poller_.wait(deadline)) handle_event(tag);
    if (nodes_) serve_nodes();
    reap_orphans();
  }
}

std::optional<Failure> Agent::failure() const {
  auto failure = supervision_ ? supervision_->failure() : std::nullopt;
  if (failure && elastic_) failure->rank = elastic_->rank_of(failure->rank);
  if (failure && nodes_) {
    const std::string& host_name = setup_.options.nodes->host;
    failure->host = host_name.empty() ? output_.host() : host_name;
  }
  return failure;
}

void Agent::report_result() {
  if (const auto failure = this->failure())
    output_.show_lines(failure_box(
        *failure, {.columns = output_.box_columns(), .has_colors = output_.box_has_colors()}));
  for (const auto& line : supervision_->closing_lines()) output_.show_error(line);
  // In an elastic job, it is no mistake if a worker has not called init(): the worker may have
  // started too late.
  if (supervision_->exit_code() != 0 || setup_.options.frameworks.any() || elastic_) return;
  if (const auto line =
          warning_of_missing_init(watched_workers(), layout_.first_rank(), layout_.size()))
    output_.show_notice(*line);
}

int Agent::finish(int exit_code) {
  job_is_over_ = true;
  stalls_.stop();
  if (exit_code == 0) {
    wait_for_leftovers(now() + Supervision::kLeftoverTime);
    if (has_descendants()) signal_descendants(SIGTERM);
    wait_for_leftovers(now() + Supervision::kLeftoverTime);
  }
  end_descendants(now() + Supervision::kKillTime);
  if (requests_.foreground_is_gone) {
    if (supervision_ && elastic_) output_.read_remaining();  // for the output files of the ranks
    return exit_code;
  }
  output_.read_remaining();
  // A signal may have arrived together with the end of the last worker.
  if (requests_.last_signal != 0 && !common_end_.other_failure()) (void)pass_on_late_signal();
  wait_for_cause(exit_code);
  if (supervision_) exit_code = supervision_->exit_code();  // the cause may be known only now
  if (supervision_ && !node_0_reports()) report_result();
  exit_code = wait_for_common_exit_code(exit_code);
  if (supervision_ && node_0_reports() && nodes_->link().has_lost_node_0()) report_result();
  const auto failure = supervision_ ? supervision_->failure() : std::nullopt;
  if (failure && common_end_.may_be_first_failed_node(layout_.node))
    caller_report_.report_first_cause(failure->rank, failure->pid);
  collect_timelines();
  output_.close();
  driver_reports_.report_job_end(layout_.node, exit_code);
  // Stop watching the connections to other launchers. A launcher that has ended has closed its
  // connection, and poll() would report a closed connection again and again.
  if (nodes_) poller_.remove(nodes_->link().descriptor());
  // Wait for a slow reader of the output, but not after a signal.
  const auto all_written = [this] {
    return output_.everything_is_written() && caller_report_.everything_is_written();
  };
  while (!all_written() && requests_.may_wait())
    for (const std::uint64_t tag : poller_.wait(std::nullopt)) handle_event(tag);
  return exit_code_after_lost_output(exit_code);
}

bool Agent::ends_with_other_nodes() const {
  return nodes_ && nodes_->link().start_message() && !leaves_elastic_job();
}

CommonEnd::OwnEnd Agent::own_end(int exit_code) const {
  const auto failure = this->failure();
  CommonEnd::OwnEnd own{.exit_code = exit_code,
                        .has_failed_itself = !supervision_ || supervision_->has_failed_itself(),
                        .is_first_node = layout_.node == 0,
                        .is_elastic = elastic_ != nullptr,
                        .node_0_reports = node_0_reports(),
                        .grace = setup_.options.grace};
  if (failure) own.report = failure_box(*failure, {.columns = setup_.options.output.box_columns});
  return own;
}

// If a rank of another node has made our workers fail, our workers may end before that rank does.
// The user must still see that rank as the cause, and not our workers.
void Agent::wait_for_cause(int exit_code) {
  const auto cause_is_known = [this] {
    const auto failure = supervision_->own_failure();
    return !failure || !failure->blamed_rank;
  };
  if (!supervision_ || elastic_ || !ends_with_other_nodes() || cause_is_known()) return;
  common_end_.wait_for_cause(own_end(exit_code), cause_is_known, nodes_->link(),
                             [this](TimePoint limit) { wait_with_nodes(limit); });
}

int Agent::wait_for_common_exit_code(int exit_code) {
  if (!ends_with_other_nodes()) return exit_code;
  return common_end_.wait_for_exit_code(own_end(exit_code), nodes_->link(),
                                        [this](TimePoint limit) { wait_with_nodes(limit); });
}

void Agent::wait_with_nodes(TimePoint limit) {
  if (const auto next_deadline = deadline()) limit = std::min(limit, *next_deadline);
  for (const std::uint64_t tag : poller_.wait(limit)) handle_event(tag);
  serve_nodes();
}

// Adds the timelines of the other nodes to that of node 0. The exit code of the job is already
// known at this time, so it does not depend on the timelines.
void Agent::collect_timelines() {
  if (!timelines_) return;
  const NodeLink& link = nodes_->link();
  // Before all nodes have ended, ranks of other nodes may still write to their files.
  if (!link.outcome()) return timelines_->warn_not_collected("not all nodes have ended");
  timelines_->begin(trace_head_of_job(*store_, now()), now());
  while (!timelines_->is_over() && nodes_failure_.ok() && requests_.may_wait()) {
    wait_with_nodes(timelines_->deadline());
    timelines_->handle_deadline(now());
  }
  timelines_->give_up(requests_.skip_waits
                          ? signal_name(requests_.last_signal) + " has ended the collection"
                          : nodes_failure_.message());
}

// Reports lost output and makes the job fail, because the user must learn that lines are missing.
int Agent::exit_code_after_lost_output(int exit_code) {
  const auto lost_output = output_.lost_output();
  if (!lost_output || requests_.foreground_is_gone) return exit_code;
  std::fprintf(stderr, "farandole: %s\n", lost_output->c_str());
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace farandole
