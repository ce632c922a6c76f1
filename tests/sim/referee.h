// Referee: knows everything, and blows the whistle at the first thing that must not be. It also is
// the board on which members enter their steps, so it sees who entered what.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
  // A member of the group took its next decision; `call` is what it had in flight under that name.
  void decided(int group, int worker, int call, const Decision& decision);
  // A member enters its next step with its number.
  void entered(int group, int worker, int call, const Step& step);
  // How many members have entered a step, and the sum of their numbers.
  int entries(int group, std::uint32_t sequence) const;
  std::int64_t sum(int group, std::uint32_t sequence) const;
  // The end of call `number`. `sum` is what a done call gave.
  void done(int worker, int number, std::int64_t sum);
  void refused(int worker, int call);
  void lost(int worker, int call);

  Outcome outcome(int worker, int call) const;
  // Nothing happens any more and everybody lives: is everything done that was to be done?
  void check_end();

  std::uint64_t steps() const { return steps_; }
  std::uint64_t refusals() const { return refusals_; }

 private:
  struct Board {
    std::vector<Decision> decisions;                               // as the first member saw them
    std::vector<std::size_t> taken;                                // by member: how many of them
    std::uint32_t sequence_last = 0;                               // of decisions
    std::map<std::uint32_t, Signature> ids;                        // what each id stood for, ever
    std::map<std::string, int> decided;                            // by name, how often
    std::map<std::pair<int, std::string>, int> submitted;          // by worker and name, how often
    std::map<std::uint32_t, std::map<int, std::int64_t>> entries;  // sequence → worker → number
  };

  void check_new(int group, int number, const Decision& decision);
  void check_refusal(int worker, int number, const Refusal& refusal);
  void end(int worker, int call, Outcome outcome);

  const Script& script_;
  std::vector<Board> boards_;
  std::map<std::pair<int, int>, Outcome> outcomes_;  // by worker and call
  std::optional<std::string> problem_;
  std::uint64_t steps_ = 0;
  std::uint64_t refusals_ = 0;
};

}  // namespace farandole::sim
