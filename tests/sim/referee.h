// Referee: watches the whole job and reports the first violation of a rule. The referee sees at
// once what each member has entered; the members do not see this at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "across_hosts.h"
#include "coordination/decision.h"
#include "script.h"

namespace farandole::sim {

// "generation.sequence"
std::string text_of(const StepNumber& step_number);

enum class Outcome : std::uint8_t { kNone, kInFlight, kDone, kRejected, kLost };

// A decision that a member enters, and the numbers of the member's calls in this decision. A member
// that has joined has no calls.
struct EnteredDecision {
  Decision decision;
  std::vector<int> calls;

  const StepNumber& step_number() const;
  std::uint64_t identity() const;
};

class Referee {
 public:
  explicit Referee(const Script& script);

  // The first violation.
  const std::optional<std::string>& problem() const { return problem_; }
  void report_problem(std::string problem);

  // A program begins an iteration of its loop.
  void record_iteration_begin(int iteration);
  // A worker has died. From now on, calls may be lost. Workers that do not know of the death yet
  // may still ask for a replan, so control messages no longer break a rule.
  void record_death(int worker);
  // A worker is going to leave before its program has ended, so calls of its groups may be lost.
  void record_early_leave(int worker);
  void record_leave(int worker);
  // A group is over for a worker, because another worker has died or left.
  void record_group_end(int group, int worker, int failed_rank, bool died);
  bool any_group_is_cut_short() const;
  // Whether all programs have reached the part in which they only repeat (Script::repeats_from).
  bool all_programs_repeat() const;
  // A control message is sent.
  void record_message();

  void record_submission(int worker, int number);
  // A program sees that a call has ended.
  void record_observation(int worker, int number);
  // A worker submits a join.
  void record_join(int group, int worker);
  // A member enters its next decision, rolls back its entry, finds that all members have entered
  // the same decision, or completes the decision.
  void record_entry(int group, int worker, const EnteredDecision& entered);
  void record_rollback(int group, int worker);
  void record_agreement(int group, int worker);
  void record_completion(int group, int worker);
  // Call `number` has ended. `sum` and `rows` are the results of a completed call.
  void record_result(int worker, int number, std::int64_t sum, std::int64_t rows);
  void record_rejection(int worker, int call);
  void record_release(int worker, int call);
  void record_loss(int worker, int call);

  Outcome outcome(int worker, int call) const { return participation_of(call, worker).outcome; }
  // The next functions are only for groups that span hosts.
  // A worker tells its host part that it leaves.
  void record_leave_request(int group, int worker);
  // `worker` is lane 0 of a host part and is notified of a leave on another host.
  void record_closed_by_another_host(int group, int worker);
  // Lane 0 of a host part finds that all hosts have entered a step with equal identities.
  void record_entered_by_all_hosts(int group, bool host_part_is_closed);
  // A member sees a misprediction.
  void record_misprediction(int group, int worker, const StepNumber& step_number);
  void record_end_sent() { ++multi_host_counts_.ends_sent; }
  void record_end_answered() { ++multi_host_counts_.ends_answered; }
  // All members of a host part have entered a step. The host part gives up this step, because
  // another host never enters it.
  void record_step_given_up() { ++multi_host_counts_.steps_given_up; }
  // The answer of a replan makes members roll back while entries are on their way.
  void record_rollback_with_entries_in_flight(int group, std::uint32_t generation);

  // Checks that all calls have ended as the rules require. If no worker has died, call this
  // function when no events are left.
  void check_end();

  MultiHostCounts multi_host_counts() const;
  std::uint64_t steps() const { return steps_; }
  std::uint64_t rejections() const { return rejections_; }
  // The next two functions return in how many steps a member that had joined took part, and how
  // many steps fused several calls.
  std::uint64_t steps_joined() const { return steps_joined_; }
  std::uint64_t steps_fused() const { return steps_fused_; }
  std::uint64_t releases() const { return releases_; }
  std::uint64_t rollbacks() const { return rollbacks_; }
  // How many messages were sent although all programs only repeated.
  std::uint64_t late_messages() const { return late_messages_; }

 private:
  struct Member {
    std::size_t completed = 0;               // number of completed decisions
    std::optional<EnteredDecision> entered;  // not completed or rolled back yet
    std::uint32_t generation_last = 1;       // the newest generation of the member's entries
    int calls = 0;                           // calls submitted since the member's last join
    std::size_t joins = 0;
  };
  // A decision that all members have entered.
  struct AgreedDecision {
    StepNumber step_number;
    std::uint64_t identity;
    std::vector<int> calls;
  };
  struct GroupRecord {
    std::vector<Member> members;
    std::vector<AgreedDecision> agreed_decisions;
    // for each name: the calls that are not decided yet
    std::map<std::string, std::deque<int>> undecided;
    // For each release: how many calls the last worker that joined had submitted, and the number of
    // this worker. The worker with the most calls counts as the last. If several workers have the
    // most calls, the worker with the highest number counts.
    std::vector<std::pair<int, int>> joined_last;
    std::size_t releases = 0;
  };
  // The end of a worker.
  struct WorkerEnd {
    int worker;
    bool died;
  };
  // One worker's part in one call: how the call ended, and whether the program has observed the
  // end.
  struct Participation {
    Outcome outcome = Outcome::kNone;
    std::uint32_t waits = 0;  // how many waits the worker had made when it submitted the call
    bool observed = false;
  };

  GroupRecord& record_of(int group) { return group_records_[static_cast<std::size_t>(group)]; }
  Member& member_of(int group, int worker);
  const Call& call_of(int number) const { return script_.call(number); }
  Participation& participation_of(int call, int worker) {
    return participations_[static_cast<std::size_t>(call)][static_cast<std::size_t>(worker)];
  }
  const Participation& participation_of(int call, int worker) const {
    return participations_[static_cast<std::size_t>(call)][static_cast<std::size_t>(worker)];
  }

  // Checks a decision when the first member sees that all members have entered this decision.
  void check_agreed_decision(int group, const AgreedDecision& agreed);
  void check_same_decision(int group, const AgreedDecision& agreed);
  void check_own_part(int worker, int number, const EnteredDecision& entered);
  void check_all_submitted(const Call& call, const AgreedDecision& agreed);
  void check_order(GroupRecord& record, int number, const AgreedDecision& agreed);
  void check_decision_kind(const Call& call, const Decision& decision,
                           const AgreedDecision& agreed);
  void check_waits(const AgreedDecision& agreed);
  void check_release(int group, const Release& release);
  void check_rejection(int worker, int number, const Rejection& rejection);
  void check_blame(int group, int worker, int failed_rank, bool died);
  // Checks that each call of a group has the same outcome on all members.
  void check_outcomes(int group);
  int host_of(int worker) const { return script_.hosts.empty() ? 0 : script_.host_of(worker); }
  void count_decision(const AgreedDecision& agreed, const Decision& decision);
  void end_call(int worker, int call, Outcome outcome);

  const Script& script_;
  std::vector<GroupRecord> group_records_;
  std::vector<std::vector<Participation>> participations_;  // by call and worker
  // For each worker: the number of its calls of which its program has observed the end.
  std::vector<std::uint32_t> ends_observed_;
  // For each call: the text that the first member received.
  std::map<int, std::string> rejections_seen_;
  int repeating_workers_ = 0;       // how many workers have reached Script::repeats_from
  std::vector<WorkerEnd> ends_;     // in the order of time
  std::vector<bool> is_cut_short_;  // for each group: whether a member leaves early
  bool any_worker_died_ = false;
  // For each group: the workers that may have ended the group by their leave, because their hosts
  // did not know of an earlier leave. Only in jobs on several hosts.
  std::map<int, std::set<int>> first_leavers_;
  std::set<std::pair<int, int>> closed_parts_;  // group, host
  // For each group and step: on which hosts members saw a misprediction.
  std::map<std::tuple<int, std::uint32_t, std::uint32_t>, std::set<int>> mispredictions_;
  std::set<std::pair<int, std::uint32_t>> replans_with_entries_;  // group, generation
  MultiHostCounts multi_host_counts_;
  std::optional<std::string> problem_;
  std::uint64_t steps_ = 0;
  std::uint64_t steps_joined_ = 0;
  std::uint64_t steps_fused_ = 0;
  std::uint64_t rejections_ = 0;
  std::uint64_t releases_ = 0;
  std::uint64_t rollbacks_ = 0;
  std::uint64_t late_messages_ = 0;
};

}  // namespace farandole::sim
