#include "worker.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "base/format.h"
#include "control/messages.h"
#include "wire_watch.h"

namespace farandole::sim {
namespace {

std::string shown(const std::string& name) { return shortened(name, 30); }

TimePoint time_point_of(Time time) { return TimePoint(std::chrono::microseconds(time)); }

}  // namespace

SimulatedWorker::SimulatedWorker(int number, Dependencies& dependencies)
    : number_(number),
      dependencies_(dependencies),
      handles_(dependencies_.script.calls.size()),
      is_dropped_(dependencies_.script.calls.size()) {
  const auto& script = dependencies_.script;
  for (int group = 0; group < static_cast<int>(script.groups.size()); ++group) {
    const auto member = script.member_of(group, number);
    if (!member) continue;
    Membership membership{.group = group, .member = *member};
    membership.agreement = std::make_unique<Agreement>(
        *member, script.members(group), script.options[static_cast<std::size_t>(group)],
        script.hosts_of(group));
    open_part(membership);
    memberships_.emplace(group, std::move(membership));
    submissions_.open_group(static_cast<GroupId>(group));
  }
}

const std::vector<Action>& SimulatedWorker::program() const {
  return dependencies_.script.programs[static_cast<std::size_t>(number_)];
}

void SimulatedWorker::wake(Time earliest) {
  const Time delay =
      dependencies_.random.between(0, static_cast<int>(dependencies_.script.delay_max));
  dependencies_.timeline.add(std::max(dependencies_.timeline.now() + delay, earliest),
                             Run{number_});
}

void SimulatedWorker::receive(const Envelope& envelope) {
  auto& membership = memberships_.at(envelope.group);
  if (!alive_ || is_over(membership)) return;
  membership.inbox.emplace_back(envelope.from, envelope.bytes);
  wake();
}

void SimulatedWorker::stop(Time end_time) {
  stopped_until_ = std::max(stopped_until_, end_time);
  dependencies_.timeline.add(end_time, Run{number_});
}

void SimulatedWorker::run() {
  const Time now = dependencies_.timeline.now();
  // a Run event for the end of the pause is already queued
  if (!alive_ || now < stopped_until_) return;
  while (make_progress()) {
  }
  const bool is_paused = now < resume_at_;
  if (!is_paused && !has_finished() && step_program()) wake();
  for (auto& [group, membership] : memberships_) {
    tick_if_due(membership);
    send_messages(membership);
  }
}

void SimulatedWorker::die() {
  if (!alive_) return;
  alive_ = false;
  dependencies_.story.tell(dependencies_.timeline.now(), "worker {} dies", number_);
}

// Does what Memberships::end_failed_groups() does. Before a group ends because of a leave, its
// members finish the step that all have entered, and enter no other step. After a death, there is
// no such rule: until their groups end, the members enter and complete steps as before, and a step
// that all have entered may be lost. If a rank leaves a group that spans hosts, lane 0 decides
// after which step the group ends.
void SimulatedWorker::notify() {
  const auto has_ended = [this](const auto& entry) { return is_over(entry.second); };
  if (!alive_) return;
  if (dependencies_.timeline.now() < stopped_until_) {
    dependencies_.timeline.add(stopped_until_, NotifyWorker{number_});
    return;
  }
  const auto& ended = dependencies_.hosts.host(dependencies_.hosts.host_of(number_)).ended;
  if (ended.first_dead_rank) forward_death(*ended.first_dead_rank);
  if (std::ranges::all_of(memberships_, has_ended)) return;
  std::vector<std::pair<Membership*, GroupFailure>> failures;
  for (auto& [group, membership] : memberships_) {
    if (is_over(membership)) continue;
    if (spans_hosts(membership) && !ended.first_dead_rank) continue;
    const bool ends_other_groups = dependencies_.flaws.a_leave_ends_other_groups;
    const auto& ranks = dependencies_.script.members(ends_other_groups ? 0 : group);
    const auto failure =
        membership.part->leaves.empty()
            ? failure_of(ended, ranks, number_, dependencies_.pids)
            : failure_of(dependencies_.hosts.ended_in(group, part_number(membership)), ranks,
                         number_, dependencies_.pids);
    if (!failure) continue;
    failures.emplace_back(&membership, *failure);
    membership.may_enter = ended.first_dead_rank.has_value();
  }
  if (failures.empty()) return;
  while (!dependencies_.flaws.loses_steps_that_all_have_entered && make_progress()) {
  }
  for (const auto& [membership, failure] : failures) {
    dependencies_.story.tell(dependencies_.timeline.now(), "group {} is over for worker {}: {}",
                             membership->group, number_, failure.status.message());
    dependencies_.referee.record_group_end(membership->group, number_, failure.failed_rank,
                                           ended.first_dead_rank == failure.failed_rank);
    if (!is_over(*membership)) end(*membership, failure.status);
  }
  wake(resume_at_);
}

void SimulatedWorker::end(Membership& membership, const Status& status) {
  membership.open_decision.reset();
  membership.agreement.reset();  // the agreement borrows signatures, so it is destroyed before them
  membership.inbox.clear();
  submissions_.end_group(static_cast<GroupId>(membership.group), status);
  for (const auto& [call_id, running] : membership.in_flight) {
    dependencies_.referee.record_loss(number_, running.call);
    submissions_.finish(*running.record);
  }
  membership.in_flight.clear();
}

bool SimulatedWorker::make_progress() {
  bool has_more = false;
  for (auto& [group, membership] : memberships_) {
    if (is_over(membership)) continue;
    has_more = take_messages(membership) || has_more;
    if (dependencies_.random.chance(50)) send_messages(membership);
    if (membership.agreement->take_rollback()) roll_back(membership);
    has_more = enter(membership) || has_more;
    has_more = read_board(membership) || has_more;
    has_more = advance_across_hosts(membership) || has_more;
    if (is_over(membership)) continue;
    has_more = try_complete_step(membership) || has_more;
  }
  return has_more && !dependencies_.referee.problem();
}

bool SimulatedWorker::take_messages(Membership& membership) {
  const bool had_messages = !membership.inbox.empty();
  for (; !membership.inbox.empty(); membership.inbox.pop_front()) {
    const auto& [from, bytes] = membership.inbox.front();
    const auto status =
        membership.agreement->receive(from, bytes, time_point_of(dependencies_.timeline.now()));
    if (!status.ok()) dependencies_.referee.report_problem(status.message());
  }
  return had_messages;
}

void SimulatedWorker::send_messages(Membership& membership) {
  if (is_over(membership)) return;
  while (auto message = membership.agreement->next_message()) {
    dependencies_.story.tell(dependencies_.timeline.now(),
                             "worker {} sends to member {} of group {}: {}", number_, message->to,
                             membership.group, message_text(message->bytes));
    dependencies_.network.send(
        {membership.group, membership.member, message->to, std::move(message->bytes)});
    if (dependencies_.random.chance(5)) {  // sends the rest later; may die before that
      wake();
      return;
    }
  }
}

// Calls tick() if the agreement's deadline has passed, and sometimes before it. Queues a Run event
// for the next deadline.
void SimulatedWorker::tick_if_due(Membership& membership) {
  if (is_over(membership) || dependencies_.flaws.never_ticks) return;
  const auto now = time_point_of(dependencies_.timeline.now());
  auto deadline = membership.agreement->deadline();
  if ((deadline && *deadline <= now) || dependencies_.random.chance(10)) {
    membership.agreement->tick(now);
    deadline = membership.agreement->deadline();
    wake();  // in a group of one member, tick() may decide without a message
  }
  if (!deadline) return;
  const auto time_left = std::chrono::ceil<std::chrono::microseconds>(*deadline - now).count();
  const Time run_at = dependencies_.timeline.now() + std::max<Time>(time_left, 1);
  if (run_at == membership.deadline_run_at) return;
  membership.deadline_run_at = run_at;
  dependencies_.timeline.add(run_at, Run{number_});
}

bool SimulatedWorker::enter(Membership& membership) {
  if (membership.open_decision || !membership.may_enter) return false;
  const auto* decision = membership.agreement->next_decision();
  if (decision == nullptr) return false;
  OpenDecision open_decision{.entered = {*decision, {}}};
  if (!find_calls(membership, *decision, open_decision.entered.calls)) return false;
  if (auto* release = std::get_if<Release>(&open_decision.entered.decision);
      release != nullptr && dependencies_.flaws.releases_name_the_first_member)
    release->last_rank = dependencies_.script.members(membership.group).front();
  open_decision.identity = open_decision.entered.identity();
  if (dependencies_.flaws.identity_includes_rows)
    for (const int call : open_decision.entered.calls)
      open_decision.identity +=
          static_cast<std::uint64_t>(dependencies_.script.call(call).declared_count(call, number_));
  dependencies_.referee.record_entry(membership.group, number_, open_decision.entered);
  add_entry_to_story(membership, open_decision);
  membership.open_decision = std::move(open_decision);
  write(membership);
  return true;
}

// Finds the numbers of a decision's calls.
bool SimulatedWorker::find_calls(const Membership& membership, const Decision& decision,
                                 std::vector<int>& calls) {
  std::vector<CallId> call_ids;
  if (const auto* step = std::get_if<Step>(&decision)) call_ids = step->call_ids;
  if (const auto* rejection = std::get_if<Rejection>(&decision)) call_ids = {rejection->call_id};
  if (const auto* release = std::get_if<Release>(&decision)) call_ids = {release->call_id};
  for (const auto call_id : call_ids) {
    const auto found = membership.in_flight.find(call_id);
    if (found == membership.in_flight.end()) {
      dependencies_.referee.report_problem(
          format_text("worker {} gets a decision about something not in flight", number_));
      return false;
    }
    calls.push_back(found->second.call);
  }
  return true;
}

void SimulatedWorker::add_entry_to_story(const Membership& membership,
                                         const OpenDecision& open_decision) {
  const Time now = dependencies_.timeline.now();
  const auto step_number = text_of(open_decision.entered.step_number());
  const auto calls = join_text(open_decision.entered.calls, " ");
  const auto& decision = open_decision.entered.decision;
  if (const auto* step = std::get_if<Step>(&decision)) {
    dependencies_.story.tell(
        now, "worker {} enters {} of group {}: {}{} ({:04x})", number_, step_number,
        membership.group, step->signature_if_joined ? "without data, as it has joined" : "calls ",
        calls, open_decision.identity & 0xffffU);
  } else if (const auto* rejection = std::get_if<Rejection>(&decision)) {
    dependencies_.story.tell(now, "worker {} enters {} of group {}: call {} is rejected, {}",
                             number_, step_number, membership.group, calls,
                             rejection->status.message());
  } else if (const auto* release = std::get_if<Release>(&decision)) {
    dependencies_.story.tell(now,
                             "worker {} enters {} of group {}: the release, rank {} joined last",
                             number_, step_number, membership.group, release->last_rank);
  } else {
    dependencies_.story.tell(now, "worker {} enters {} of group {}: others are rejected", number_,
                             step_number, membership.group);
  }
}

// The identity as the board holds it. It is mixed with the step number, so that equal decisions in
// different steps have different values on the board.
std::uint64_t SimulatedWorker::mixed_identity(const OpenDecision& open_decision) const {
  if (dependencies_.flaws.identity_without_step_number) return open_decision.identity;
  return open_decision.identity ^ SimulatedBoard::word_of(open_decision.entered.step_number());
}

Entry SimulatedWorker::entry_of(const OpenDecision& open_decision) const {
  Entry entry{.identity = mixed_identity(open_decision)};
  for (const int call : open_decision.entered.calls) {
    entry.values.push_back(Call::value(call, number_));
    entry.declared_counts.push_back(dependencies_.script.call(call).declared_count(call, number_));
  }
  if (entry.values.empty() && dependencies_.flaws.joined_members_bring_data) {
    entry.values.push_back(1);
    entry.declared_counts.push_back(1);
  }
  return entry;
}

// Writes first the entry and then its word. The other members see both writes later.
void SimulatedWorker::write(Membership& membership) {
  const auto step_number = membership.open_decision->entered.step_number();
  board(membership)
      .write_entry(membership.index, step_number.sequence, entry_of(*membership.open_decision));
  board(membership)
      .write_word(membership.index, step_number.sequence, SimulatedBoard::word_of(step_number));
  dependencies_.network.schedule_settles(membership.group, membership.member, 2);
}

void SimulatedWorker::roll_back(Membership& membership) {
  dependencies_.referee.record_rollback(membership.group, number_);
  if (!membership.open_decision) return;
  const auto step_number = membership.open_decision->entered.step_number();
  if (dependencies_.network.entries_in_flight(membership.group) > 0)
    dependencies_.referee.record_rollback_with_entries_in_flight(membership.group,
                                                                 step_number.generation);
  dependencies_.story.tell(dependencies_.timeline.now(), "worker {} rolls back {} of group {}",
                           number_, text_of(step_number), membership.group);
  if (membership.open_decision->state == OpenDecision::State::kAgreed)
    dependencies_.referee.report_problem(
        format_text("worker {} rolls back {} of group {}, though it saw its agreement", number_,
                    text_of(step_number), membership.group));
  // The line on the board stays. The other members ignore it, because its generation is over.
  membership.open_decision.reset();
}

// Whether a member's word is equal to ours, as far as this worker can see.
bool SimulatedWorker::has_our_word(const Membership& membership, const OpenDecision& open_decision,
                                   int member) {
  const auto step_number = open_decision.entered.step_number();
  const auto word = board(membership).word(membership.index, member, step_number.sequence);
  const auto own_word = SimulatedBoard::word_of(step_number);
  if (dependencies_.flaws.ignores_generations)
    return static_cast<std::uint32_t>(word) == static_cast<std::uint32_t>(own_word);
  return word == own_word;
}

// Reads all words, then all identities; other members may write between any two of these reads.
// Returns true if it found an agreement or a misprediction.
bool SimulatedWorker::read_board(Membership& membership) {
  if (!membership.open_decision || membership.open_decision->state != OpenDecision::State::kReading)
    return false;
  auto& open_decision = *membership.open_decision;
  const int members = board(membership).members();
  const int end = 2 * members;
  const bool is_interrupted =
      members > 1 && membership.may_enter && dependencies_.random.chance(15);
  const int stop =
      is_interrupted ? dependencies_.random.between(open_decision.reads, end - 1) : end;
  int may_be_missing = dependencies_.flaws.completes_before_the_last_entry && members > 1 ? 1 : 0;
  if (open_decision.reads == 0) open_decision.identity_differs = false;
  for (; open_decision.reads < stop; ++open_decision.reads) {
    const int stage = open_decision.reads / members;
    const int member = open_decision.reads % members;
    if (stage == 1) {
      const auto& entry =
          board(membership)
              .entry(membership.index, member, open_decision.entered.step_number().sequence);
      open_decision.identity_differs =
          open_decision.identity_differs || entry.identity != mixed_identity(open_decision);
    } else if (!has_our_word(membership, open_decision, member) && --may_be_missing < 0) {
      open_decision.reads = 0;  // the next change of that line wakes this worker
      return false;
    }
  }
  if (open_decision.reads < end) {
    wake();
    return false;
  }
  if (open_decision.identity_differs && !dependencies_.flaws.completes_before_the_last_entry)
    mispredict(membership);
  else if (spans_hosts(membership))
    open_decision.state = OpenDecision::State::kEnteredHere;
  else
    agree(membership);
  return true;
}

void SimulatedWorker::mispredict(Membership& membership) {
  const auto step_number = membership.open_decision->entered.step_number();
  membership.open_decision->state = OpenDecision::State::kMispredicted;
  dependencies_.story.tell(dependencies_.timeline.now(),
                           "worker {} has mispredicted by {} of group {}", number_,
                           text_of(step_number), membership.group);
  dependencies_.referee.record_misprediction(membership.group, number_, step_number);
  if (!dependencies_.flaws.ignores_mispredictions) membership.agreement->record_misprediction();
}

void SimulatedWorker::agree(Membership& membership) {
  membership.open_decision->state = OpenDecision::State::kAgreed;
  dependencies_.referee.record_agreement(membership.group, number_);
}

// Completes a decision that all members have entered. Half of the simulated algorithms complete at
// once. The other half complete only after all members have written that they are done.
bool SimulatedWorker::try_complete_step(Membership& membership) {
  if (!membership.open_decision || membership.open_decision->state != OpenDecision::State::kAgreed)
    return false;
  if (dependencies_.referee.problem()) return false;
  if (membership.may_enter && dependencies_.random.chance(10)) {  // sometimes the step takes longer
    wake();
    return false;
  }
  auto& open_decision = *membership.open_decision;
  const bool chooses_alone = dependencies_.flaws.each_member_chooses_its_algorithm;
  const auto choice = chooses_alone ? static_cast<std::uint64_t>(number_) : open_decision.identity;
  if (choice % 2 == 1 && !publish_done_and_check_all(membership, open_decision)) return false;
  end_step(membership, open_decision);
  membership.agreement->record_completion();
  membership.completed = open_decision.entered.step_number().sequence;
  const auto calls = open_decision.entered.calls;
  membership.open_decision.reset();
  for (const int call : calls) {
    const auto ended = membership.in_flight.extract(handles_[static_cast<std::size_t>(call)]);
    submissions_.finish(*ended.mapped().record);
    if (is_dropped_[static_cast<std::size_t>(call)]) release_name(call);
  }
  return true;
}

bool SimulatedWorker::publish_done_and_check_all(Membership& membership,
                                                 OpenDecision& open_decision) {
  const auto step_number = open_decision.entered.step_number();
  const auto word = SimulatedBoard::word_of(step_number);
  if (!std::exchange(open_decision.says_done, true)) {
    board(membership).write_done(membership.index, step_number.sequence, word);
    dependencies_.network.schedule_settles(membership.group, membership.member, 1);
  }
  for (int member = 0; member < board(membership).members(); ++member)
    if (board(membership).done_word(membership.index, member, step_number.sequence) != word)
      return false;
  return true;
}

void SimulatedWorker::end_step(Membership& membership, const OpenDecision& open_decision) {
  const auto step_number = open_decision.entered.step_number();
  const auto& calls = open_decision.entered.calls;
  dependencies_.referee.record_completion(membership.group, number_);
  std::vector<std::int64_t> sums(calls.size());
  std::vector<std::int64_t> rows(calls.size());
  const auto add = [&](const Entry& entry) {
    for (std::size_t index = 0; index < std::min(calls.size(), entry.values.size()); ++index) {
      sums[index] += entry.values[index];
      rows[index] += entry.declared_counts[index];
    }
  };
  for (const auto& part : dependencies_.hosts.parts(membership.group))
    for (int member = 0; member < part.board.members(); ++member) {
      const int reader = &part == membership.part ? membership.index : member;
      add(part.board.entry(reader, member, step_number.sequence));
    }
  dependencies_.story.tell(dependencies_.timeline.now(), "worker {} completes {} of group {}: {}",
                           number_, text_of(step_number), membership.group, join_text(sums, " "));
  for (std::size_t index = 0; index < calls.size(); ++index) {
    if (std::holds_alternative<Step>(open_decision.entered.decision))
      dependencies_.referee.record_result(number_, calls[index], sums[index], rows[index]);
    else if (std::holds_alternative<Release>(open_decision.entered.decision))
      dependencies_.referee.record_release(number_, calls[index]);
    else
      dependencies_.referee.record_rejection(number_, calls[index]);
  }
}

// Runs some actions of the program. Returns true if the worker should run again soon: its program
// can go on, or the program's submissions may have led to a decision on this worker.
bool SimulatedWorker::step_program() {
  bool has_acted = false;
  for (int count = dependencies_.random.between(1, 4); count > 0 && !has_finished(); --count) {
    const auto& action = program()[next_action_];
    if (!std::visit([this](const auto& what) { return act(what); }, action)) break;
    ++next_action_;
    has_acted = true;
    if (dependencies_.timeline.now() < resume_at_) break;
  }
  return has_acted;
}

bool SimulatedWorker::act(const Submit& action) {
  const int number = action.call;
  submit({&number, 1});
  const auto& call = dependencies_.script.call(number);
  if (!action.twice || submissions_.is_over(static_cast<GroupId>(call.group))) return true;
  const Status status = try_submit(dependencies_.script.submission_of(number, number_));
  const char* const reason = call.is_join() ? "after join()" : "is in use";
  if (status.code() != StatusCode::kFixCall || status.message().find(reason) == std::string::npos)
    dependencies_.referee.report_problem(
        format_text("worker {}: submitting call {} twice must be an error", number_, number));
  return true;
}

bool SimulatedWorker::act(const SubmitBatch& action) {
  submit(action.calls);
  return true;
}

// Does what a program does to ask whether a call has ended. Returns true also if the program no
// longer has a handle of the call.
bool SimulatedWorker::poll(int number) {
  const Handle handle = handles_[static_cast<std::size_t>(number)];
  if (!submissions_.poll(handle)) return false;
  if (handle != 0) dependencies_.referee.record_observation(number_, number);
  return true;
}

bool SimulatedWorker::act(const SubmitInPolledOrder& action) {
  const bool done = poll(action.polled);
  submit({done ? &action.first : &action.second, 1});
  submit({done ? &action.second : &action.first, 1});
  return true;
}

bool SimulatedWorker::act(const SubmitRejected& action) {
  Submission submission;
  submission.operation = action.operation;
  if (row_of(action.operation).shape_rule == ShapeRule::kAllButFirst) submission.shape = {1};
  submission.name = action.name;
  submission.group = static_cast<GroupId>(action.group);
  if (try_submit(submission).ok())
    dependencies_.referee.report_problem(
        format_text("worker {}: `{}` is accepted while it is in use", number_, action.name));
  return true;
}

bool SimulatedWorker::act(const Poll& action) {
  if (poll(action.call) && dependencies_.flaws.polls_release_names) release_name(action.call);
  return true;
}

bool SimulatedWorker::act(const Drop& action) {
  const auto call = static_cast<std::size_t>(action.call);
  if (!dependencies_.flaws.dropped_calls_release_names)
    submissions_.drop(handles_[call]);
  else if (poll(action.call))
    release_name(action.call);
  else
    is_dropped_[call] = true;
  return true;
}

bool SimulatedWorker::act(const Wait& action) {
  if (!poll(action.call)) return false;
  release_name(action.call);
  return true;
}

// Takes the call's outcome from the table, so that the call's name can be used again.
void SimulatedWorker::release_name(int number) {
  const Handle handle = std::exchange(handles_[static_cast<std::size_t>(number)], 0);
  if (handle != 0) (void)submissions_.take(handle);
}

bool SimulatedWorker::act(const Pause& action) {
  resume_at_ = dependencies_.timeline.now() + action.time;
  if (action.stops_worker) stopped_until_ = resume_at_;
  dependencies_.timeline.add(resume_at_, Run{number_});
  return true;
}

bool SimulatedWorker::act(const BeginIteration& action) {
  dependencies_.story.tell(dependencies_.timeline.now(), "worker {} begins iteration {}", number_,
                           action.iteration);
  dependencies_.referee.record_iteration_begin(action.iteration);
  return true;
}

// Like Memberships::end_by_shutdown(), first finishes the steps that all members have entered. If a
// group spans hosts, lane 0 says which steps these are.
bool SimulatedWorker::act(const Leave& action) {
  if (!action.is_early && submissions_.calls_in_flight() > 0) return false;
  if (action.is_early) dependencies_.referee.record_early_leave(number_);
  for (auto& [group, membership] : memberships_) {
    membership.may_enter = false;
    record_own_leave(membership);
  }
  while (make_progress()) {
  }
  const auto must_stay = [this](const auto& entry) { return !may_leave(entry.second); };
  if (std::ranges::any_of(memberships_, must_stay)) return false;
  dependencies_.story.tell(dependencies_.timeline.now(), "worker {} leaves", number_);
  const Time now = dependencies_.timeline.now();
  Time seen_at = now;
  for (auto& [group, membership] : memberships_) {
    if (!is_over(membership)) end(membership, Status::rebuild_group("this rank has left"));
    seen_at = std::max(seen_at, dependencies_.network.settled_at(group, membership.member));
  }
  alive_ = false;
  dependencies_.timeline.add(dependencies_.flaws.leaves_before_its_writes_are_seen ? now : seen_at,
                             ShowLeave{number_});
  return true;
}

// Submits one call or a batch.
void SimulatedWorker::submit(std::span<const int> calls) {
  const auto& script = dependencies_.script;
  auto& membership = memberships_.at(script.call(calls.front()).group);
  std::vector<Submission> batch;
  for (const int number : calls) {
    dependencies_.referee.record_submission(number_, number);
    batch.push_back(script.submission_of(number, number_));
  }
  std::vector<Handle> handles(batch.size());
  const Status status =
      submissions_.add(batch, handles, time_point_of(dependencies_.timeline.now()));
  if (submissions_.is_over(static_cast<GroupId>(membership.group))) {
    for (const int number : calls) dependencies_.referee.record_loss(number_, number);
    return;
  }
  if (!status.ok())
    return dependencies_.referee.report_problem(
        format_text("worker {}: call {}: {}", number_, calls.front(), status.message()));
  std::vector<Record*> arrived;
  submissions_.take_arrived(arrived);
  for (std::size_t index = 0; index < calls.size(); ++index)
    begin_call(membership, calls[index], *arrived[index]);
  if (calls.size() == 1 && dependencies_.random.chance(50)) send_messages(membership);
}

void SimulatedWorker::begin_call(Membership& membership, int number, Record& record) {
  const auto& call = dependencies_.script.call(number);
  const Signature& signature = record.interned->interned.signature;
  SubmissionContext context = record.context;
  dependencies_.story.tell(dependencies_.timeline.now(),
                           "worker {} submits call {} to group {}: `{}`{}", number_, number,
                           call.group, shown(call.signature_of(number_).name),
                           context.batch == 0 ? "" : format_text(", batch {}", context.batch));
  if (signature.name != call.signature_of(number_).name)
    return dependencies_.referee.report_problem(
        format_text("worker {}: call {} is named `{}`, not `{}`", number_, number, signature.name,
                    call.signature_of(number_).name));
  if (!(signature == call.signature_of(number_)))
    return dependencies_.referee.report_problem(
        format_text("worker {}: call {} has another signature", number_, number));
  if (dependencies_.flaws.counts_no_waits) context.waits = 0;
  handles_[static_cast<std::size_t>(number)] = record.handle;
  membership.in_flight.emplace(record.handle, RunningCall{number, &record});
  membership.agreement->submit(record.handle, record.interned->interned, context,
                               record.submitted_at);
  if (call.is_join()) dependencies_.referee.record_join(call.group, number_);
}

// Submits a call that must be rejected.
Status SimulatedWorker::try_submit(const Submission& submission) {
  Handle handle = 0;
  return submissions_.add({&submission, 1}, {&handle, 1},
                          time_point_of(dependencies_.timeline.now()));
}

std::string SimulatedWorker::waiting_for() const {
  if (has_finished()) return format_text("worker {} has finished", number_);
  const auto* wait = std::get_if<Wait>(&program()[next_action_]);
  if (wait == nullptr) return format_text("worker {} is in action {}", number_, next_action_);
  const auto& call = dependencies_.script.call(wait->call);
  return format_text("worker {} waits for call {} (`{}` of group {})", number_, wait->call,
                     shown(call.common.name), call.group);
}

}  // namespace farandole::sim
