// SimulatedWorker: one process of the job. It runs its program and takes the place of the engine.
// The class Submissions gives names to the calls of the program and rejects invalid calls. The
// worker passes the accepted calls to its Agreements, enters their decisions on the boards, checks
// whether all members have entered the same decision, and completes the decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "board.h"
#include "coordination/agreement.h"
#include "flaws.h"
#include "frames.h"
#include "host_parts.h"
#include "lane_zero.h"
#include "network.h"
#include "random.h"
#include "referee.h"
#include "script.h"
#include "story.h"
#include "submission/submissions.h"

namespace farandole::sim {

// The objects that the workers share. They must outlive all workers.
struct Dependencies {
  const Script& script;
  Flaws flaws;
  Timeline& timeline;
  Random& random;
  Network& network;
  Hosts& hosts;
  Referee& referee;
  Story& story;
  const std::vector<std::int64_t>& pids;  // of each worker, for error texts
};

class SimulatedWorker {
 public:
  SimulatedWorker(int number, Dependencies& dependencies);

  // A message has arrived.
  void receive(const Envelope& envelope);
  // A frame from another host part has arrived.
  void receive(const RoutedFrame& frame);
  // Does everything that this worker can do now. The simulation calls it for each Run event.
  void run();
  void die();
  // Stops the whole worker until the given time.
  void stop(Time end_time);
  // The doorbells of the host say that workers have died or left. Ends the groups that cannot go on
  // without them; the calls in flight in these groups are lost.
  void notify();

  // False if this worker has died or has left the job.
  bool is_alive() const { return alive_; }
  bool has_finished() const { return next_action_ == program().size(); }
  // Says what the worker waits for, to describe a deadlock.
  std::string waiting_for() const;

 private:
  // One of this worker's calls, until it ends.
  struct RunningCall {
    int call;
    Record* record;  // the agreement borrows the signature in the record
  };
  // A decision that this member has entered, and has not completed or rolled back yet.
  struct OpenDecision {
    enum class State : std::uint8_t {
      kReading,
      kEnteredHere,  // all members of the host part have entered the same decision
      kMispredicted,
      kAgreed,
    };
    EnteredDecision entered;
    std::uint64_t identity = 0;  // the board stores it mixed with the step number
    State state = State::kReading;
    int reads = 0;  // how many reads read_board() has made: first the words, then the identities
    bool identity_differs = false;
    bool says_done = false;  // whether this member has written that it is done
  };
  // This worker's membership of one group.
  struct Membership {
    int group;
    int member;
    HostPart* part = nullptr;
    int index = 0;                             // in the host part
    std::unique_ptr<LaneZero> lane_zero = {};  // of member 0 of the part, if the group spans hosts
    std::deque<std::pair<int, Frame>> frames = {};  // (host part of the sender, frame)
    std::uint32_t completed = 0;                    // the last completed sequence
    bool wants_to_leave = false;
    std::unique_ptr<Agreement> agreement = {};     // null once the group has ended for us
    std::deque<std::pair<int, Bytes>> inbox = {};  // (sender, message)
    std::map<CallId, RunningCall> in_flight = {};  // by handle
    std::optional<OpenDecision> open_decision = {};
    bool may_enter = true;      // false when the group is about to end for us
    Time deadline_run_at = -1;  // the time of the Run event that is queued for the deadline
  };

  const std::vector<Action>& program() const;
  static SimulatedBoard& board(const Membership& membership) { return membership.part->board; }
  int part_number(const Membership& membership) const {
    return dependencies_.hosts.part_of(membership.group, membership.member);
  }
  bool spans_hosts(const Membership& membership) const {
    return dependencies_.hosts.spans_hosts(membership.group);
  }
  void wake(Time earliest = 0);
  bool make_progress();
  bool take_messages(Membership& membership);
  void send_messages(Membership& membership);
  void tick_if_due(Membership& membership);

  bool enter(Membership& membership);
  void add_entry_to_story(const Membership& membership, const OpenDecision& open_decision);
  bool find_calls(const Membership& membership, const Decision& decision, std::vector<int>& calls);
  std::uint64_t mixed_identity(const OpenDecision& open_decision) const;
  Entry entry_of(const OpenDecision& open_decision) const;
  void write(Membership& membership);
  void roll_back(Membership& membership);
  void end(Membership& membership, const Status& status);
  bool is_over(const Membership& membership) const { return membership.agreement == nullptr; }
  bool read_board(Membership& membership);
  void mispredict(Membership& membership);
  void agree(Membership& membership);
  bool has_our_word(const Membership& membership, const OpenDecision& open_decision, int member);
  bool try_complete_step(Membership& membership);
  bool publish_done_and_check_all(Membership& membership, OpenDecision& open_decision);
  void end_step(Membership& membership, const OpenDecision& open_decision);

  // The next functions are only for groups with members on several hosts; see worker_hosts.cc.
  void open_part(Membership& membership);
  bool advance_across_hosts(Membership& membership);
  bool apply_lane_0_results(Membership& membership);
  bool run_lane_0(Membership& membership);
  bool check_entered_by_all_hosts(Membership& membership);
  bool has_open_step(const Membership& membership) const;
  void send_frames(Membership& membership);
  void end_part(Membership& membership);
  void end_by_leave(Membership& membership);
  void record_own_leave(Membership& membership);
  bool may_leave(const Membership& membership) const;
  void forward_death(int worker);

  bool step_program();
  bool act(const Submit& action);
  bool act(const SubmitBatch& action);
  bool act(const SubmitInPolledOrder& action);
  bool act(const SubmitRejected& action);
  bool act(const Poll& action);
  bool act(const Drop& action);
  bool act(const Wait& action);
  bool act(const Pause& action);
  bool act(const BeginIteration& action);
  bool act(const Leave& action);
  void submit(std::span<const int> calls);
  void begin_call(Membership& membership, int number, Record& record);
  Status try_submit(const Submission& submission);
  bool poll(int number);
  void release_name(int number);

  int number_;
  Dependencies& dependencies_;
  std::map<int, Membership> memberships_;  // by group
  std::size_t next_action_ = 0;
  Time resume_at_ = 0;  // the program pauses until then
  Time stopped_until_ = 0;
  bool alive_ = true;
  bool has_forwarded_death_ = false;
  Submissions submissions_;
  std::vector<Handle> handles_;   // by call number, until the outcome is taken
  std::vector<bool> is_dropped_;  // by call; only for a planted bug
};

}  // namespace farandole::sim
