// What an agent does in elastic jobs only.
#include <signal.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/format.h"
#include "base/process_end.h"
#include "base/try.h"
#include "elastic/make_elastic_node.h"
#include "launcher/agent_loop.h"
#include "rendezvous/launcher_notice.h"

namespace farandole {

Status Agent::begin_elastic_job() {
  FARANDOLE_TRY_ASSIGN(
      elastic_,
      make_elastic_node(*setup_.options.elastic, nodes_ ? nodes_->layout() : layout_, *store_,
                        nodes_ ? &nodes_->link() : nullptr, now(),
                        setup_.options.nodes ? setup_.options.nodes->replaces : std::nullopt));
  return {};
}

void Agent::report_exit_to_node_0(int local_rank, const std::string& end_text, bool succeeded) {
  nodes_->link().report_exit({.rank = static_cast<std::uint32_t>(layout_.rank_of(local_rank)),
                              .how_it_ended = end_text,
                              .succeeded = succeeded});
}

// Carries out the decisions of the membership of an elastic job.
void Agent::advance_elastic_job() {
  if (!may_change_members()) return;
  const ElasticOrders orders = elastic_->advance(now());
  if (orders.group_formed) {
    supervision_->failures_survived();
    common_end_.failures_survived();
    driver_reports_.report_group(layout_.node, elastic_->epoch());
  }
  if (!node_0_reports())
    for (const auto& notice : orders.notices) output_.show_notice(notice);
  for (const auto& [local_rank, number] : orders.starts) {
    const int slot = layout_.rank_of(local_rank);
    const Status started = start_local_worker(local_rank, number);
    output_.show_notice(
        started.ok() ? format_text("worker {} (pid {}) is new", slot, workers_.pid(local_rank))
                     : started.message());
    if (started.ok()) continue;
    const std::string end_text = format_text("worker {} could not start", slot);
    elastic_->worker_ended(local_rank, false, end_text, now());
    if (nodes_) report_exit_to_node_0(local_rank, end_text, false);
  }
  if (orders.lost_member) worker_notices_.send_loss(*orders.lost_member);
  for (const int local_rank : orders.kills) workers_.send_signal(local_rank, SIGKILL);
  if (orders.must_leave) request_end(SIGTERM);
  if (!orders.end.empty()) perform(supervision_->end_elastic_job(orders.end, now()));
  if (elastic_->is_over()) supervision_->no_more_workers();
}

// A node of an elastic job that gets SIGTERM leaves at the next commit.
bool Agent::begin_to_leave(int signal) {
  return signal == SIGTERM && may_change_members() &&
         elastic_->begin_to_leave(now() + setup_.options.grace);
}

// Lets the workers of an elastic job finish their step, save their state and end. All ranks agree
// on the step after which they end, so it is enough if one launcher tells its own workers. After
// the time `limit`, this launcher kills those of its workers that still run.
void Agent::end_at_next_commit(const std::string& why, Duration limit) {
  if (!elastic_ || !supervision_ || job_is_over_ || supervision_->ends_at_next_commit()) return;
  perform(supervision_->end_at_next_commit(why, limit, now()));
  if (!supervision_->ends_at_next_commit()) return;  // the job was already ending
  worker_notices_.send_end(why, limit);
  output_.drop_when_full();
  handle_signal(SIGCONT);  // a worker that SIGSTOP has stopped could not save its state
}

// Call it when the foreground process has ended. If the job is on several hosts, it loses only this
// node, and the other nodes go on.
void Agent::handle_foreground_loss() {
  requests_.foreground_is_gone = true;
  if (!nodes_) end_at_next_commit("the foreground process of the launcher was killed", kEndLimit);
}

void Agent::handle_driver_loss() {
  poller_.remove(setup_.driver_loss_pipe);
  char byte = 0;  // if no byte arrives, the foreground process has ended
  if (::read(setup_.driver_loss_pipe, &byte, 1) == 1) record_driver_loss();
}

void Agent::record_driver_loss() {
  driver_loss_.record_loss(now());
  if (!supervision_ || job_is_over_) requests_.foreground_is_gone = true;
}

void Agent::check_driver_loss() {
  if (!driver_loss_.is_lost()) return;
  const bool node_0_ends =
      layout_.node == 0 || common_end_.other_failure() || nodes_->link().has_lost_node_0();
  const auto verdict = driver_loss_.verdict(node_0_ends, now());
  if (verdict == DriverLoss::Verdict::kGoOn) return;
  requests_.foreground_is_gone = true;
  if (verdict == DriverLoss::Verdict::kEndAtNextCommit)
    end_at_next_commit("the driver of the job (`farandole run`) was killed",
                       driver_loss_.time_left(now()));
}

// Whether this node ends while the other nodes go on.
bool Agent::leaves_elastic_job() const {
  return elastic_ && elastic_->is_leaving_job() && !common_end_.other_failure();
}

}  // namespace farandole
