#include "referee.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <variant>

#include "base/format.h"

namespace farandole::sim {

std::string text_of(const StepNumber& step_number) {
  return format_text("{}.{}", step_number.generation, step_number.sequence);
}

namespace {

// Returns a text such as "ranks 0, 1, 3-5", independently of the code under test.
std::string text_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    const bool after = index > 0 && ranks[index] == ranks[index - 1] + 1;
    const bool before = index + 1 < ranks.size() && ranks[index] == ranks[index + 1] - 1;
    if (after && before) continue;
    const bool third = after && index > 1 && ranks[index] == ranks[index - 2] + 2;
    text += third ? "-" : (index > 0 ? ", " : " ");
    text += std::to_string(ranks[index]);
  }
  return text;
}

// The part of the rejection's text that distinguishes the odd signature from the common one.
std::string odd_value(const Signature& common, const Signature& odd) {
  if (odd.operation != common.operation) return std::string(row_of(odd.operation).name);
  if (odd.dtype != common.dtype) return std::string(row_of(odd.dtype).name);
  if (std::signbit(odd.prescale)) return " -0";
  return "77";  // part of a shape, or a scale
}

// The call errors of a call. Each has a list of the ranks that submit this error.
std::map<std::string, std::vector<int>> call_errors_of(const Call& call) {
  std::map<std::string, std::vector<int>> call_errors;
  for (const int maker : call.makers)
    if (call.signature_of(maker).has_call_error())
      call_errors[call.signature_of(maker).call_error].push_back(maker);
  return call_errors;
}

// Error texts cut long lists of ranks. So the referee requires only the beginning of the expected
// text.
std::string first_bytes(const std::string& text) { return text.substr(0, 20); }

bool is_later(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

}  // namespace

const StepNumber& EnteredDecision::step_number() const {
  return std::visit([](const auto& any) -> const StepNumber& { return any.step_number; }, decision);
}

std::uint64_t EnteredDecision::identity() const {
  const auto* step = std::get_if<Step>(&decision);
  return step == nullptr ? 0 : step->identity;
}

Referee::Referee(const Script& script)
    : script_(script),
      ends_observed_(static_cast<std::size_t>(script.workers)),
      is_cut_short_(script.groups.size()) {
  for (const auto& members : script.groups) {
    group_records_.emplace_back();
    group_records_.back().members.resize(members.size());
  }
  for (int number = 0; number < static_cast<int>(script.calls.size()); ++number) {
    const auto& call = call_of(number);
    participations_.emplace_back(static_cast<std::size_t>(script.workers));
    if (!call.is_join()) record_of(call.group).undecided[call.common.name].push_back(number);
  }
}

void Referee::report_problem(std::string problem) {
  if (!problem_) problem_ = std::move(problem);
}

void Referee::record_iteration_begin(int iteration) {
  if (script_.repeats_from == iteration) ++repeating_workers_;
}

bool Referee::all_programs_repeat() const {
  if (!script_.repeats_from || any_worker_died_ || any_group_is_cut_short()) return false;
  return *script_.repeats_from == 0 || repeating_workers_ == script_.workers;
}

void Referee::record_message() {
  if (!all_programs_repeat()) return;
  ++late_messages_;
  if (script_.must_fall_silent) report_problem("a control message, though nothing is new");
}

void Referee::record_death(int worker) {
  any_worker_died_ = true;
  ends_.push_back({.worker = worker, .died = true});
}

void Referee::record_leave(int worker) {
  ends_.push_back({.worker = worker, .died = false});
  if (script_.hosts.empty()) return;
  for (int group = 0; group < static_cast<int>(group_records_.size()); ++group)
    if (script_.member_of(group, worker)) record_leave_request(group, worker);
}

void Referee::record_early_leave(int worker) {
  for (int group = 0; group < static_cast<int>(group_records_.size()); ++group)
    if (script_.member_of(group, worker)) is_cut_short_[static_cast<std::size_t>(group)] = true;
}

bool Referee::any_group_is_cut_short() const {
  return std::ranges::find(is_cut_short_, true) != is_cut_short_.end();
}

// A death ends all groups; a leave ends the groups that the worker was in. The error must name the
// first worker that has ended this group by its death or leave.
void Referee::record_group_end(int group, int worker, int failed_rank, bool died) {
  if (!script_.hosts.empty()) return check_blame(group, worker, failed_rank, died);
  const auto first = std::ranges::find_if(ends_, [&](const WorkerEnd& end) {
    return end.died || (end.worker != worker && script_.member_of(group, end.worker));
  });
  if (first == ends_.end())
    report_problem(
        format_text("group {} is over for worker {}, and all its members go on", group, worker));
  else if (first->worker != failed_rank)
    report_problem(format_text("worker {} blames {} for the end of group {}, but {} was the first",
                               worker, failed_rank, group, first->worker));
}

Referee::Member& Referee::member_of(int group, int worker) {
  return record_of(group).members[static_cast<std::size_t>(*script_.member_of(group, worker))];
}

void Referee::record_submission(int worker, int number) {
  auto& participation = participation_of(number, worker);
  if (participation.outcome != Outcome::kNone)
    report_problem(format_text("worker {} submits call {} twice", worker, number));
  participation = {Outcome::kInFlight, ends_observed_[static_cast<std::size_t>(worker)]};
  const auto& call = call_of(number);
  if (!call.is_join()) ++member_of(call.group, worker).calls;
}

void Referee::record_observation(int worker, int number) {
  auto& participation = participation_of(number, worker);
  if (participation.outcome == Outcome::kInFlight)
    report_problem(
        format_text("worker {} sees the end of call {}, which is in flight", worker, number));
  if (!std::exchange(participation.observed, true))
    ++ends_observed_[static_cast<std::size_t>(worker)];
}

void Referee::record_join(int group, int worker) {
  auto& last = record_of(group).joined_last;
  auto& member = member_of(group, worker);
  if (last.size() == member.joins) last.emplace_back(-1, -1);
  last[member.joins] = std::max(last[member.joins], {member.calls, worker});
  ++member.joins;
  member.calls = 0;
}

void Referee::record_entry(int group, int worker, const EnteredDecision& entered) {
  auto& member = member_of(group, worker);
  const auto& step_number = entered.step_number();
  if (member.entered)
    report_problem(format_text("worker {} enters {} of group {} while it is in {}", worker,
                               text_of(step_number), group,
                               text_of(member.entered->step_number())));
  if (step_number.sequence != member.completed + 1)
    report_problem(format_text("worker {} enters {} of group {}, but it has completed {}", worker,
                               text_of(step_number), group, member.completed));
  if (is_later(member.generation_last, step_number.generation))
    report_problem(format_text("worker {} enters {} of group {} after one of generation {}", worker,
                               text_of(step_number), group, member.generation_last));
  member.generation_last = step_number.generation;
  for (const int call : entered.calls)
    if (outcome(worker, call) != Outcome::kInFlight)
      report_problem(format_text("worker {} enters {} of group {} with call {}, not in flight",
                                 worker, text_of(step_number), group, call));
  member.entered = entered;
}

// A member must not roll back an agreed step, because another member may already run it.
void Referee::record_rollback(int group, int worker) {
  auto& member = member_of(group, worker);
  ++rollbacks_;
  if (!member.entered) {
    report_problem(
        format_text("worker {} rolls back what it has not entered in group {}", worker, group));
    return;
  }
  if (member.entered->step_number().sequence <= record_of(group).agreed_decisions.size())
    report_problem(format_text("worker {} rolls back {} of group {}, on which all had agreed",
                               worker, text_of(member.entered->step_number()), group));
  member.entered.reset();
}

void Referee::record_agreement(int group, int worker) {
  auto& record = record_of(group);
  const auto& entered = *member_of(group, worker).entered;
  const auto sequence = entered.step_number().sequence;
  if (sequence == record.agreed_decisions.size() + 1) {
    AgreedDecision agreed{entered.step_number(), entered.identity(), entered.calls};
    for (const auto& member : record.members)
      if (member.entered && !member.entered->calls.empty()) agreed.calls = member.entered->calls;
    check_same_decision(group, agreed);
    if (problem_) return;
    check_agreed_decision(group, agreed);
    if (problem_) return;
    count_decision(agreed, entered.decision);
    record.agreed_decisions.push_back(std::move(agreed));
  }
  if (problem_) return;
  const auto& agreed = record.agreed_decisions[sequence - 1];
  if (!(agreed.step_number == entered.step_number()) || agreed.identity != entered.identity())
    report_problem(format_text("worker {} is in {} of group {}, others agreed on {}", worker,
                               text_of(entered.step_number()), group, text_of(agreed.step_number)));
  for (const int number : agreed.calls) check_own_part(worker, number, entered);
}

// One member has seen that all members have entered this step number. So all members must have
// entered the same decision.
void Referee::check_same_decision(int group, const AgreedDecision& agreed) {
  const auto& members = script_.members(group);
  const auto& record = record_of(group);
  for (std::size_t index = 0; index < members.size(); ++index) {
    const auto& entered = record.members[index].entered;
    if (!entered || !(entered->step_number() == agreed.step_number))
      report_problem(
          format_text("{} of group {} counts as entered by all, but worker {} is not in it",
                      text_of(agreed.step_number), group, members[index]));
    else if (entered->identity() != agreed.identity ||
             (!entered->calls.empty() && entered->calls != agreed.calls))
      report_problem(format_text("{} of group {}: worker {} has entered calls {}, others {}",
                                 text_of(agreed.step_number), group, members[index],
                                 join_text(entered->calls, " "), join_text(agreed.calls, " ")));
  }
}

void Referee::check_agreed_decision(int group, const AgreedDecision& agreed) {
  auto& record = record_of(group);
  if (agreed.calls.empty())
    return report_problem(
        format_text("no member has entered {} of group {}", text_of(agreed.step_number), group));
  for (const int number : agreed.calls) {
    const auto& call = call_of(number);
    check_all_submitted(call, agreed);
    if (!call.is_join()) check_order(record, number, agreed);
  }
  for (const auto& member : record.members)
    for (const int number : agreed.calls)
      check_decision_kind(call_of(number), member.entered->decision, agreed);
  bool releases = false;
  for (const auto& member : record.members) {
    const auto* release = std::get_if<Release>(&member.entered->decision);
    releases |= release != nullptr;
    if (release != nullptr) check_release(group, *release);
  }
  record.releases += releases ? 1 : 0;
  check_waits(agreed);
}

void Referee::count_decision(const AgreedDecision& agreed, const Decision& decision) {
  if (std::holds_alternative<Step>(decision)) {
    ++steps_;
    if (!call_of(agreed.calls.front()).joined.empty()) ++steps_joined_;
    if (agreed.calls.size() > 1) ++steps_fused_;
  } else if (std::holds_alternative<Release>(decision)) {
    ++releases_;
  } else {
    ++rejections_;
  }
}

void Referee::check_all_submitted(const Call& call, const AgreedDecision& agreed) {
  const auto number = static_cast<int>(&call - script_.calls.data());
  for (const int maker : call.makers)
    if (outcome(maker, number) == Outcome::kNone)
      report_problem(format_text("{} of group {}: worker {} has not submitted call {}",
                                 text_of(agreed.step_number), call.group, maker, number));
  for (const int worker : call.joined)
    if (outcome(worker, call.join) == Outcome::kNone)
      report_problem(format_text("{} of group {}: worker {} has not joined",
                                 text_of(agreed.step_number), call.group, worker));
}

// Calls of one name must be decided in the script's order.
void Referee::check_order(GroupRecord& record, int number, const AgreedDecision& agreed) {
  auto& calls = record.undecided[call_of(number).common.name];
  if (calls.empty() || calls.front() != number)
    report_problem(format_text("{} of group {} is call {}, out of its order",
                               text_of(agreed.step_number), call_of(number).group, number));
  else
    calls.pop_front();
}

void Referee::check_decision_kind(const Call& call, const Decision& decision,
                                  const AgreedDecision& agreed) {
  const bool rejects =
      std::holds_alternative<Rejection>(decision) || std::holds_alternative<NoOp>(decision);
  if (call.is_join() != std::holds_alternative<Release>(decision))
    report_problem(format_text("{} of group {}: a release is for joins",
                               text_of(agreed.step_number), call.group));
  else if (rejects && !call.is_rejected())
    report_problem(format_text("{} of group {}: a call that must run is rejected",
                               text_of(agreed.step_number), call.group));
  else if (!rejects && call.is_rejected())
    report_problem(format_text("{} of group {}: a call that must be rejected runs",
                               text_of(agreed.step_number), call.group));
}

// Two calls of a worker must not share a step if the worker waited between submitting them.
void Referee::check_waits(const AgreedDecision& agreed) {
  for (const int maker : call_of(agreed.calls.front()).makers)
    for (const int number : agreed.calls)
      if (participation_of(number, maker).waits !=
          participation_of(agreed.calls.front(), maker).waits)
        report_problem(format_text("{} of group {}: worker {} has waited between its calls {}",
                                   text_of(agreed.step_number), call_of(number).group, maker,
                                   join_text(agreed.calls, " ")));
}

// Checks a member's part of a decision, which depends on whether the member has joined.
void Referee::check_own_part(int worker, int number, const EnteredDecision& entered) {
  const auto& call = call_of(number);
  const bool joined = std::ranges::binary_search(call.joined, worker);
  if (const auto* step = std::get_if<Step>(&entered.decision)) {
    if (joined != step->signature_if_joined.has_value() || joined != entered.calls.empty())
      report_problem(format_text("{}: worker {} {} joined", text_of(step->step_number), worker,
                                 joined ? "has" : "has not"));
    else if (joined && !(*step->signature_if_joined == call.common))
      report_problem(
          format_text("{}: worker {} gets another signature", text_of(step->step_number), worker));
  } else if (const auto* rejection = std::get_if<Rejection>(&entered.decision)) {
    check_rejection(worker, number, *rejection);
  } else if (std::holds_alternative<Release>(entered.decision)) {
    return;
  }
  if (!std::holds_alternative<Step>(entered.decision) &&
      joined != std::holds_alternative<NoOp>(entered.decision))
    report_problem(format_text("worker {} {} joined, which does not fit its decision in {}", worker,
                               joined ? "has" : "has not", text_of(entered.step_number())));
}

void Referee::check_release(int group, const Release& release) {
  const auto& record = record_of(group);
  const int last = record.joined_last.at(record.releases).second;
  if (release.last_rank != last)
    report_problem(format_text("{} of group {} names rank {}, worker {} was the last to join",
                               text_of(release.step_number), group, release.last_rank, last));
}

void Referee::check_rejection(int worker, int number, const Rejection& rejection) {
  const auto& call = call_of(number);
  const auto& text = rejection.status.message();
  const auto [first, is_new] = rejections_seen_.emplace(number, text);
  if (first->second != text)
    report_problem(format_text("worker {}: call {} is rejected: {}; another saw: {}", worker,
                               number, text, first->second));
  const auto missing = [&](std::string_view expected_text) {
    if (text.find(expected_text) == std::string::npos)
      report_problem(format_text("worker {}: the rejection does not say `{}`: {}", worker,
                                 expected_text, text));
  };
  if (rejection.status.code() != StatusCode::kFixCall)
    report_problem("the code of a rejection is not kFixCall");
  missing(shortened(call.common.name, 100).substr(0, 90));
  const auto call_errors = call_errors_of(call);
  for (const auto& [call_error, workers] : call_errors) {
    missing(first_bytes(text_of(workers) + ": "));
    missing(": " + call_error);
  }
  if (!call_errors.empty()) return;
  if (!call.is_mismatch()) {
    missing(row_of(call.common.operation).name);
    missing(first_bytes(text_of(call.joined) +
                        (call.joined.size() == 1 ? " has joined" : " have joined")));
  }
  for (const auto& [who, odd] : call.odd_signatures) {
    std::vector<int> alike;
    for (const auto& [other, signature] : call.odd_signatures)
      if (signature == odd) alike.push_back(other);
    missing(first_bytes("\n  " + text_of(alike) + " "));
    missing(odd_value(call.common, odd));
  }
}

void Referee::record_completion(int group, int worker) {
  auto& member = member_of(group, worker);
  member.entered.reset();
  ++member.completed;
}

void Referee::record_result(int worker, int number, std::int64_t sum, std::int64_t rows) {
  const auto& call = call_of(number);
  std::int64_t expected_sum = 0;
  std::int64_t expected_rows = 0;
  for (const int maker : call.makers) {
    expected_sum += Call::value(number, maker);
    expected_rows += call.declared_count(number, maker);
  }
  if (sum != expected_sum || rows != expected_rows)
    report_problem(format_text("worker {}: call {} gave the sum {} and {} rows, not {} and {}",
                               worker, number, sum, rows, expected_sum, expected_rows));
  end_call(worker, number, Outcome::kDone);
}

void Referee::record_rejection(int worker, int call) { end_call(worker, call, Outcome::kRejected); }

void Referee::record_release(int worker, int call) { end_call(worker, call, Outcome::kDone); }

void Referee::record_loss(int worker, int call) {
  if (!any_worker_died_ && !is_cut_short_[static_cast<std::size_t>(call_of(call).group)])
    report_problem(format_text(
        "worker {} loses call {}, though no member of its group leaves early", worker, call));
  end_call(worker, call, Outcome::kLost);
}

void Referee::end_call(int worker, int call, Outcome outcome) {
  auto& current = participation_of(call, worker).outcome;
  if (current != Outcome::kInFlight)
    report_problem(format_text("worker {}: call {} ends, which was not in flight", worker, call));
  current = outcome;
}

void Referee::check_end() {
  for (std::size_t number = 0; number < script_.calls.size(); ++number) {
    const auto& call = script_.calls[number];
    if (is_cut_short_[static_cast<std::size_t>(call.group)]) continue;
    const auto expected_outcome = call.is_rejected() ? Outcome::kRejected : Outcome::kDone;
    for (const int worker : call.makers)
      if (outcome(worker, static_cast<int>(number)) != expected_outcome)
        report_problem(format_text("worker {}: call {} did not come to its end", worker, number));
  }
  for (int group = 0; group < static_cast<int>(group_records_.size()); ++group)
    check_outcomes(group);
  for (std::size_t group = 0; group < group_records_.size(); ++group)
    for (const auto& member : group_records_[group].members)
      if (!is_cut_short_[group] &&
          member.completed != group_records_[group].agreed_decisions.size())
        report_problem("a step did not reach every member");
}

}  // namespace farandole::sim
