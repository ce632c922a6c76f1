// SimulatedWorker: one process of the job. It runs its program and plays the engine: it submits to
// its SubmissionTable, which names and rejects calls, feeds its Agreements, enters their decisions
// on the boards, checks whether all members have entered alike, and completes the decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "board.h"
#include "coordination/agreement.h"
#include "network.h"
#include "random.h"
#include "referee.h"
#include "script.h"
#include "story.h"
#include "submission/submission_table.h"

namespace farandole::sim {

// Bugs of the simulated engine itself, to test that the referee notices them.
struct Flaws {
  bool completes_before_the_last_entered = false;
  bool one_survivor_is_not_told = false;
  bool the_joined_bring_data = false;
  bool releases_name_the_first_member = false;
  bool ignores_generations = false;
  bool identity_without_word = false;
  bool never_looks_at_the_time = false;
  bool identity_holds_the_rows = false;
  bool each_chooses_its_algorithm = false;
  bool counts_no_waits = false;
  bool takes_no_notice_of_mispredictions = false;
  bool polls_release_names = false;
  bool dropped_calls_release_names = false;
};

// The objects that the workers share. They must outlive all workers.
struct Dependencies {
  const Script& script;
  Flaws flaws;
  Timeline& timeline;
  Random& random;
  Network& network;
  std::vector<SimulatedBoard>& boards;  // by group
  Referee& referee;
  Story& story;
};

class SimulatedWorker {
 public:
  SimulatedWorker(int number, Dependencies& dependencies);

  // A message has arrived.
  void receive(const Envelope& envelope);
  // Goes on as far as possible. The simulation calls it for each Run event.
  void run();
  void die();
  // A worker has died, so the job has ended and pending calls are lost.
  void learn(int dead);

  bool alive() const { return alive_; }
  bool finished() const { return next_action_ == program().size(); }
  // Says what the worker waits for, to describe a deadlock.
  std::string waiting_for() const;

 private:
  // One of this worker's calls, until it ends. The agreement borrows the signature.
  struct Submission {
    int call;
    std::unique_ptr<InternedSignature> interned;
  };
  // A decision that this member has entered, and neither completed nor rolled back.
  struct Attempt {
    enum class State : std::uint8_t { kLooking, kMispredicted, kAgreed };
    Entered entered;
    std::uint64_t identity = 0;  // as this worker writes it to the board
    State state = State::kLooking;
    int looked_at = 0;      // how many reads look() has made: first the words, then the identities
    bool is_other = false;  // an identity differs
    bool says_done = false;
  };
  // This worker's membership of one group.
  struct Seat {
    int group;
    int member;
    std::unique_ptr<Agreement> agreement = {};
    std::deque<std::pair<int, Bytes>> inbox = {};
    std::map<CallId, Submission> in_flight = {};
    std::optional<Attempt> attempt = {};
    std::uint32_t quiescent_points = 0;
    int unseen = 0;     // submitted calls whose end the program has not seen
    Time look_at = -1;  // when a Run event is queued for the deadline
  };

  const std::vector<Action>& program() const;
  SimulatedBoard& board(const Seat& seat) {
    return dependencies_.boards[static_cast<std::size_t>(seat.group)];
  }
  void wake(Time at_least = 0);
  bool progress();
  bool take_messages(Seat& seat);
  void send_messages(Seat& seat);
  void look_at_the_time(Seat& seat);

  bool enter(Seat& seat);
  void tell_of(const Seat& seat, const Attempt& attempt);
  bool find_calls(const Seat& seat, const Decision& decision, std::vector<int>& calls);
  std::uint64_t mixed_identity(const Attempt& attempt) const;
  Entry entry_of(const Attempt& attempt) const;
  void write(Seat& seat);
  void roll_back(Seat& seat);
  bool look(Seat& seat);
  bool is_mine(const Seat& seat, const Attempt& attempt, int member);
  bool finish(Seat& seat);
  bool all_are_done(Seat& seat, Attempt& attempt);
  void end_step(Seat& seat, const Attempt& attempt);

  bool step_program();
  bool act(const Submit& action);
  bool act(const SubmitBatch& action);
  bool act(const SubmitByPoll& action);
  bool act(const SubmitRejected& action);
  bool act(const Poll& action);
  bool act(const Drop& action);
  bool act(const Wait& action);
  bool act(const Pause& action);
  bool act(const Begin& action);
  void submit(int number, std::uint32_t batch, bool twice);
  Result<Record*> name(int group, Operation operation, const std::string& name);
  bool is_done(int number) const;
  void release_name(int number);
  SubmissionContext context(const Seat& seat, std::uint32_t batch) const;
  void see(int number);

  int number_;
  Dependencies& dependencies_;
  std::map<int, Seat> seats_;  // by group
  std::size_t next_action_ = 0;
  Time resume_at_ = 0;  // the program pauses until then
  Time stopped_until_ = 0;
  bool alive_ = true;
  std::optional<int> dead_;  // the worker whose death ended the job
  std::vector<bool> seen_;   // by call: whether the program has seen its end
  SubmissionTable table_;
  std::vector<Handle> handles_;   // by call, until its outcome is taken
  std::vector<bool> is_dropped_;  // by call; only for a planted bug
  std::uint32_t waits_ = 0;
  std::uint32_t batch_last_ = 0;
  CallId call_id_last_ = 0;
};

}  // namespace farandole::sim
