// SimulatedWorker: one process of the job. It runs its program and plays the engine: it feeds its
// Agreements, enters decided steps in their order, one at a time in each group, and completes them.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordination/agreement.h"
#include "network.h"
#include "random.h"
#include "referee.h"
#include "script.h"
#include "story.h"

namespace farandole::sim {

// Bugs of the simulated engine itself, to see that the referee notices.
struct Flaws {
  bool completes_before_the_last_entered = false;
  bool one_survivor_is_not_told = false;
  bool the_joined_bring_data = false;
  bool releases_name_the_first_member = false;
};

// What the workers share; all outlive them.
struct Surroundings {
  const Script& script;
  Flaws flaws;
  Timeline& timeline;
  Random& random;
  Network& network;
  Referee& referee;
  Story& story;
};

class SimulatedWorker {
 public:
  SimulatedWorker(int number, Surroundings& surroundings);

  // A message has come for us.
  void receive(const Envelope& envelope);
  // Goes on as far as possible; called when a Run has come.
  void run();
  void die();
  // The watch says that somebody died: the job is over, what is pending is lost.
  void learn(int dead);

  bool alive() const { return alive_; }
  bool finished() const { return next_action_ == program().size(); }
  // What the worker waits for, for the story of a deadlock.
  std::string waiting_for() const;

 private:
  // Our membership of one group.
  struct Seat {
    int group;
    int member;
    std::unique_ptr<Agreement> agreement;
    std::deque<std::pair<int, Bytes>> inbox;
    std::map<std::string, int> in_flight;    // name → call, until its decision
    std::deque<std::pair<Step, int>> queue;  // decided steps with their calls, −1 if we have joined
    bool entered = false;                    // the head of the queue
    bool joins = false;  // on the coordinator's member: our join has not reached it
  };

  const std::vector<Action>& program() const;
  void wake(int worker, Time at_least = 0);
  bool progress();
  bool take_messages(Seat& seat);
  bool take_decisions(Seat& seat);
  bool take(Seat& seat, const Decision& decision);
  void reach_coordinator(Seat& seat);
  bool run_steps(Seat& seat);
  void enter(Seat& seat);
  void send_messages(Seat& seat);

  bool step_program();
  bool act(const Submit& action);
  bool act(const SubmitByPoll& action);
  bool act(const Wait& action);
  bool act(const Pause& action);
  void submit(int number, bool twice);

  int number_;
  Surroundings& around_;
  std::map<int, Seat> seats_;  // by group
  std::size_t next_action_ = 0;
  Time resume_at_ = 0;  // the program pauses until then
  Time stopped_until_ = 0;
  bool alive_ = true;
  std::optional<int> dead_;  // who ended the job
};

}  // namespace farandole::sim
