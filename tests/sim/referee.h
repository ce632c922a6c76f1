// Referee: knows everything, and blows the whistle at the first thing that must not be. It sees who
// has entered what when it happens, which no member can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordination/decision.h"
#include "script.h"

namespace farandole::sim {

enum class Outcome : std::uint8_t { kNone, kInFlight, kDone, kRefused, kLost };

// What a member enters: a decision with the numbers of its calls, none where it has joined.
struct Entered {
  Decision decision;
  std::vector<int> calls;

  const Turn& turn() const;
  std::uint64_t identity() const;
};

class Referee {
 public:
  explicit Referee(const Script& script);

  // What went wrong first.
  const std::optional<std::string>& problem() const { return problem_; }
  void blow(std::string problem);

  // A program begins an iteration of its loop.
  void began(int iteration);
  // Somebody died: the job is over, and who has not heard of it may still raise.
  void died() { died_ = true; }
  // Whether all programs are where nothing is new any more.
  bool is_nothing_new() const;
  // A control message is sent.
  void sent();

  void submitted(int worker, int number, const Moment& moment);
  // A worker submits a join.
  void joined(int group, int worker, Time now);
  // A member enters its next turn, takes its entry back, finds that all have entered alike, and
  // comes to the end of it.
  void entered(int group, int worker, const Entered& what);
  void withdrawn(int group, int worker);
  void agreed(int group, int worker);
  void completed(int group, int worker);
  // The end of call `number`. `sum` and `rows` are what a done call gave.
  void done(int worker, int number, std::int64_t sum, std::int64_t rows);
  void refused(int worker, int call);
  void released(int worker, int call);
  void lost(int worker, int call);

  Outcome outcome(int worker, int call) const { return of(call, worker).outcome; }
  // Nothing happens any more and everybody lives: is everything done that was to be done?
  void check_end();

  std::uint64_t steps() const { return steps_; }
  std::uint64_t refusals() const { return refusals_; }
  // Of the steps: those that somebody got because it had joined, and those of several calls.
  std::uint64_t steps_joined() const { return steps_joined_; }
  std::uint64_t steps_fused() const { return steps_fused_; }
  std::uint64_t releases() const { return releases_; }
  std::uint64_t withdrawals() const { return withdrawals_; }
  // Messages that were sent though nothing was new.
  std::uint64_t late_messages() const { return late_messages_; }

 private:
  struct Member {
    std::size_t completed = 0;          // turns
    std::optional<Entered> entered;     // and neither completed nor withdrawn
    std::uint32_t generation_last = 1;  // of its entries
  };
  // A turn that all have entered alike.
  struct Agreed {
    Turn turn;
    std::uint64_t identity;
    std::vector<int> calls;
  };
  struct Board {
    std::vector<Member> members;
    std::vector<Agreed> agreed;
    std::map<std::string, std::deque<int>> undecided;  // by name, the calls to come
    int joined_last = -1;                              // at the same time the last worker
    Time joined_at{};
  };
  // One worker's part in one call.
  struct Part {
    Outcome outcome = Outcome::kNone;
    std::uint32_t waits = 0;  // at the submission
  };

  Board& board_of(int group) { return boards_[static_cast<std::size_t>(group)]; }
  Member& member_of(int group, int worker);
  const Call& call_of(int number) const { return script_.call(number); }
  Part& of(int call, int worker) {
    return parts_[static_cast<std::size_t>(call)][static_cast<std::size_t>(worker)];
  }
  const Part& of(int call, int worker) const {
    return parts_[static_cast<std::size_t>(call)][static_cast<std::size_t>(worker)];
  }

  // What nobody has found before.
  void check_new(int group, const Agreed& what);
  void check_alike(int group, const Agreed& what);
  void check_own(int worker, int number, const Entered& entered);
  void check_all_submitted(const Call& call, const Agreed& what);
  void check_order(Board& board, int number, const Agreed& what);
  void check_kind(const Call& call, const Decision& decision, const Agreed& what);
  void check_waits(const Agreed& what);
  void check_release(int group, const Release& release);
  void check_refusal(int worker, int number, const Refusal& refusal);
  void count(const Agreed& what, const Decision& decision);
  void end(int worker, int call, Outcome outcome);

  const Script& script_;
  std::vector<Board> boards_;
  std::vector<std::vector<Part>> parts_;      // by call and worker
  std::map<int, std::string> refusals_seen_;  // by call: the text, as its first member saw it
  int began_last_ = 0;                        // workers that are where nothing is new
  bool died_ = false;
  std::optional<std::string> problem_;
  std::uint64_t steps_ = 0;
  std::uint64_t steps_joined_ = 0;
  std::uint64_t steps_fused_ = 0;
  std::uint64_t refusals_ = 0;
  std::uint64_t releases_ = 0;
  std::uint64_t withdrawals_ = 0;
  std::uint64_t late_messages_ = 0;
};

}  // namespace farandole::sim
