// What a worker does for groups with members on several hosts. Member 0 of each host part, here
// called lane 0, communicates with the other host parts and writes the results on the board of its
// part.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "worker.h"

namespace farandole::sim {
namespace {

StepIdentity identity_of(const StepNumber& step_number, std::uint64_t id) {
  return {step_number.generation, step_number.sequence, id};
}

}  // namespace

void SimulatedWorker::open_part(Membership& membership) {
  auto& hosts = dependencies_.hosts;
  const int part = hosts.part_of(membership.group, membership.member);
  membership.part = &hosts.part(membership.group, part);
  membership.index = hosts.index_of(membership.group, membership.member);
  if (membership.index == 0 && hosts.spans_hosts(membership.group))
    membership.lane_zero = std::make_unique<LaneZero>(
        static_cast<int>(hosts.parts(membership.group).size()), part, dependencies_.flaws);
}

void SimulatedWorker::receive(const RoutedFrame& frame) {
  auto& membership = memberships_.at(frame.group);
  if (!alive_ || is_over(membership)) return;
  membership.frames.emplace_back(frame.from, frame.frame);
  wake();
}

// Advances a group on several hosts: lane 0 processes the frames of other hosts, and the other
// members apply what lane 0 has written. Returns whether there may be more to do.
bool SimulatedWorker::advance_across_hosts(Membership& membership) {
  if (!spans_hosts(membership)) return false;
  return membership.lane_zero ? run_lane_0(membership) : apply_lane_0_results(membership);
}

// Reads what lane 0 has written: counts a step as agreed, or ends the group after a step.
bool SimulatedWorker::apply_lane_0_results(Membership& membership) {
  const auto& open_decision = membership.open_decision;
  const bool waits = open_decision && open_decision->state == OpenDecision::State::kEnteredHere;
  const auto& last_sequence = board(membership).last_sequence(membership.index);
  if (waits && (dependencies_.flaws.local_members_do_not_wait ||
                board(membership).all_hosts_entered(membership.index) ==
                    SimulatedBoard::word_of(open_decision->entered.step_number()))) {
    if (!last_sequence || !dependencies_.flaws.drops_a_step_that_all_hosts_have_entered) {
      agree(membership);
      return true;
    }
  }
  if (!last_sequence) return false;
  membership.may_enter = false;
  if (open_decision && open_decision->entered.step_number().sequence <= *last_sequence &&
      !dependencies_.flaws.drops_a_step_that_all_hosts_have_entered)
    return false;
  end_by_leave(membership);
  return true;
}

bool SimulatedWorker::run_lane_0(Membership& membership) {
  auto& lane = *membership.lane_zero;
  const bool had_frames = !membership.frames.empty();
  const bool was_closed = lane.closed_by().has_value();
  for (; !membership.frames.empty(); membership.frames.pop_front()) {
    const auto& [from, frame] = membership.frames.front();
    lane.take(from, frame);
  }
  auto& leaves = membership.part->leaves;
  if (lane.closed_by() && !was_closed) {
    auto& host = dependencies_.hosts.host(membership.part->host);
    leaves.push_back({*lane.closed_by(), ++host.tickets});
    dependencies_.referee.record_closed_by_another_host(membership.group, number_);
    if (lane.has_answered()) dependencies_.referee.record_end_answered();
  } else if (!leaves.empty()) {
    lane.close(leaves.front().rank);
  }
  if (lane.closed_by() && !was_closed)
    dependencies_.story.tell(
        dependencies_.timeline.now(),
        "the part of group {} of lane 0 = worker {} is closed, as worker {} leaves",
        membership.group, number_, *lane.closed_by());
  if (lane.closed_by()) membership.may_enter = false;
  const bool has_changed = check_entered_by_all_hosts(membership);
  send_frames(membership);
  if (!lane.closed_by() || has_open_step(membership)) return had_frames || has_changed;
  end_part(membership);
  return true;
}

// Sends the entry of a step that all members of the host part have entered. Then checks whether all
// hosts have entered the step with equal identities. Returns true if it finds that all hosts have
// entered the step number, with equal or with different identities.
bool SimulatedWorker::check_entered_by_all_hosts(Membership& membership) {
  auto& open_decision = membership.open_decision;
  const auto& flaws = dependencies_.flaws;
  auto& lane = *membership.lane_zero;
  if (!open_decision) return false;
  const auto step = identity_of(open_decision->entered.step_number(), open_decision->identity);
  const bool all_have_entered =
      open_decision->state == OpenDecision::State::kEnteredHere ||
      (flaws.sends_its_entry_too_early && open_decision->state == OpenDecision::State::kReading);
  if (!all_have_entered) return false;
  if (!lane.has_entered(step)) {
    if (lane.closed_by() && !flaws.enters_after_its_end) return false;
    lane.enter(step);
  }
  if (open_decision->state != OpenDecision::State::kEnteredHere) return false;
  switch (lane.state_of(step)) {
    case LaneZero::StepState::kEnteredByAll:
      dependencies_.referee.record_entered_by_all_hosts(membership.group,
                                                        lane.closed_by().has_value());
      board(membership)
          .write_all_hosts_entered(SimulatedBoard::word_of(open_decision->entered.step_number()));
      dependencies_.network.schedule_settles(membership.group, membership.member, 1);
      agree(membership);
      return true;
    case LaneZero::StepState::kMispredicted:
      if (flaws.ignores_mispredictions_between_hosts) return false;
      mispredict(membership);
      return true;
    case LaneZero::StepState::kOpen:
    case LaneZero::StepState::kNeverEntered:
      return false;
  }
  return false;
}

// Whether the open step is running or may still have to run, because all hosts may still enter it.
bool SimulatedWorker::has_open_step(const Membership& membership) const {
  const auto& open_decision = membership.open_decision;
  if (!open_decision || dependencies_.flaws.ends_at_once) return false;
  if (open_decision->state == OpenDecision::State::kAgreed) return true;
  if (open_decision->state != OpenDecision::State::kEnteredHere) return false;
  if (dependencies_.flaws.lane_0_leaves_in_a_step && membership.wants_to_leave) return false;
  const auto step = identity_of(open_decision->entered.step_number(), open_decision->identity);
  return membership.lane_zero->has_entered(step) &&
         membership.lane_zero->state_of(step) == LaneZero::StepState::kOpen;
}

void SimulatedWorker::send_frames(Membership& membership) {
  const int part = part_number(membership);
  const auto& flaws = dependencies_.flaws;
  while (auto next = membership.lane_zero->next_frame()) {
    auto* end = std::get_if<EndFrame>(&next->second);
    if (end != nullptr) {
      if (flaws.ends_name_the_completed_step) end->entered.sequence = membership.completed;
      dependencies_.story.tell(
          dependencies_.timeline.now(),
          "worker {} tells part {} of group {}: it is over, entered {}, as worker {} leaves",
          number_, next->first, membership.group, text_of(end->entered), end->rank);
      dependencies_.referee.record_end_sent();
      if (flaws.sends_no_end_when_lane_0_leaves && end->rank == number_) continue;
      if (flaws.passes_a_leave_on_as_a_death) {
        const auto& other = dependencies_.hosts.part(membership.group, next->first);
        dependencies_.network.send_death(membership.part->host, other.host, end->rank);
        continue;
      }
    }
    dependencies_.network.send_frame({membership.group, part, next->first, next->second});
  }
}

// Lane 0 ends the group for its host part.
void SimulatedWorker::end_part(Membership& membership) {
  if (membership.open_decision &&
      membership.open_decision->state == OpenDecision::State::kEnteredHere)
    dependencies_.referee.record_step_given_up();
  if (!dependencies_.flaws.does_not_tell_local_members_of_the_end) {
    board(membership).write_last_sequence(membership.completed);
    dependencies_.network.schedule_settles(membership.group, membership.member, 1);
  }
  end_by_leave(membership);
}

void SimulatedWorker::end_by_leave(Membership& membership) {
  const auto& ranks = dependencies_.script.members(membership.group);
  const auto known = dependencies_.hosts.ended_in(membership.group, part_number(membership));
  const auto failure = failure_of(known, ranks, number_, dependencies_.pids);
  if (membership.wants_to_leave || !failure)
    return end(membership, Status::rebuild_group("this rank has left"));
  dependencies_.story.tell(dependencies_.timeline.now(), "group {} is over for worker {}: {}",
                           membership.group, number_, failure->status.message());
  dependencies_.referee.record_group_end(membership.group, number_, failure->failed_rank,
                                         known.first_dead_rank == failure->failed_rank);
  end(membership, failure->status);
}

// Records, in the memory of the host part, that this rank leaves.
void SimulatedWorker::record_own_leave(Membership& membership) {
  if (!spans_hosts(membership) || is_over(membership)) return;
  if (std::exchange(membership.wants_to_leave, true)) return;
  auto& host = dependencies_.hosts.host(membership.part->host);
  auto& leaves = membership.part->leaves;
  const KnownLeave leave{number_, ++host.tickets};
  if (dependencies_.flaws.forgets_the_first_cause && !leaves.empty())
    leaves.front() = {number_, leaves.front().ticket};
  leaves.push_back(leave);
  dependencies_.referee.record_leave_request(membership.group, number_);
  const int lane_0 =
      dependencies_.hosts.worker_of_lane_0(membership.group, part_number(membership));
  const Time delay =
      dependencies_.random.between(0, static_cast<int>(dependencies_.script.delay_max));
  dependencies_.timeline.add(dependencies_.timeline.now() + delay, Run{lane_0});
}

// Whether this member may leave, because no other member needs it any more.
bool SimulatedWorker::may_leave(const Membership& membership) const {
  if (is_over(membership)) return true;
  const auto& open_decision = membership.open_decision;
  if (open_decision && open_decision->state == OpenDecision::State::kAgreed) return false;
  if (!spans_hosts(membership)) return true;
  return !membership.lane_zero && (!open_decision || dependencies_.flaws.leaves_in_a_step);
}

// Notifies the other hosts of a death, in all groups in which this worker has lane 0. A worker does
// this only once.
void SimulatedWorker::forward_death(int worker) {
  if (std::exchange(has_forwarded_death_, true) || dependencies_.flaws.deaths_are_not_passed_on)
    return;
  const int own_host = dependencies_.hosts.host_of(number_);
  for (const int host : dependencies_.hosts.hosts_notified_by(number_))
    dependencies_.network.send_death(own_host, host, worker);
}

}  // namespace farandole::sim
