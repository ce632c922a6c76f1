// Referee: knows everything, and blows the whistle at the first thing that must not be. It also is
// the board on which members enter their steps, so it sees who entered what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordination/decision.h"
#include "script.h"

namespace farandole::sim {

enum class Outcome : std::uint8_t { kNone, kInFlight, kDone, kRefused, kLost };

class Referee {
 public:
  explicit Referee(const Script& script);

  // What went wrong first.
  const std::optional<std::string>& problem() const { return problem_; }
  void blow(std::string problem);

  void submitted(int worker, int number);
  // A worker's join has come to the group's coordinator.
  void join_reached(int group, int worker);
  // A member of the group took its next decision; `call` is what it had in flight under that name,
  // −1 for a step that it gets because it has joined.
  void decided(int group, int worker, int call, const Decision& decision);
  // A member enters its next step with its number.
  void entered(int group, int worker, const Step& step, std::int64_t value);
  // How many members have entered a step, and the sum of their numbers.
  int entries(int group, std::uint32_t sequence) const;
  std::int64_t sum(int group, std::uint32_t sequence) const;
  // The end of call `number`. `sum` is what a done call gave.
  void done(int worker, int number, std::int64_t sum);
  void refused(int worker, int call);
  void released(int worker, int call);
  void lost(int worker, int call);

  Outcome outcome(int worker, int call) const;
  // Nothing happens any more and everybody lives: is everything done that was to be done?
  void check_end();

  std::uint64_t steps() const { return steps_; }
  std::uint64_t refusals() const { return refusals_; }
  // Of the steps: those that somebody got because it had joined.
  std::uint64_t steps_joined() const { return steps_joined_; }
  std::uint64_t releases() const { return releases_; }

 private:
  // A step or a release as its first member saw it, without what is each member's own.
  struct Common {
    Decision decision;
    int call;
  };
  struct Board {
    std::vector<Common> decisions;
    std::vector<std::size_t> taken;                    // by member: how many of them
    std::map<int, Refusal> refusals;                   // by call, as its first member saw it
    std::uint32_t sequence_last = 0;                   // of decisions
    std::map<std::uint32_t, Signature> ids;            // what each id stood for, ever
    std::map<std::string, std::deque<int>> undecided;  // by name, the calls to come
    int joined_last = -1;                              // by the coordinator's order
    std::map<std::uint32_t, std::map<int, std::int64_t>> entries;  // sequence → worker → number
  };

  Board& board_of(int group) { return boards_[static_cast<std::size_t>(group)]; }
  const Call& call_of(int number) const { return script_.calls[static_cast<std::size_t>(number)]; }
  // The call that this new decision must be about.
  int decide_next(Board& board, const std::string& name);
  void check_new(int group, const Call& call, const Decision& decision);
  void check_own(int group, int worker, int number, const Decision& decision);
  void check_all_submitted(const Call& call, const std::string& what);
  void check_new_step(int group, const Call& call, const Step& step);
  void check_new_release(int group, const Release& release);
  void check_joined(int worker, int number, const Step& step);
  void check_refusal(int worker, int number, const Refusal& refusal);
  void end(int worker, int call, Outcome outcome);

  const Script& script_;
  std::vector<Board> boards_;
  std::map<std::pair<int, int>, Outcome> outcomes_;  // by worker and call
  std::optional<std::string> problem_;
  std::uint64_t steps_ = 0;
  std::uint64_t steps_joined_ = 0;
  std::uint64_t refusals_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace farandole::sim
