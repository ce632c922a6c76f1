// A job of the model: its options say what is explored and which bug is planted. It owns the memory
// that its members share, with names for the traces. The classes that run on it are the shipped
// ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "control/messages.h"
#include "model_atomics.h"
#include "transport/shm/flag_board.h"

namespace farandole::model {

using ModelDoorbells = BasicDoorbells<ModelAtomics>;
template <std::uint32_t Slots>
using ModelBoard = BasicFlagBoard<ModelAtomics, Slots>;

// Writes the fields of a board's check that belong to the key of a thread's local state.
template <class CheckState>
void write_check_state(ByteWriter& key, const CheckState& state) {
  key.put(state.missing);
  key.put(state.awaited);
}

enum class Bug : std::uint8_t {
  kNone,
  // These bugs leave a member asleep for ever.
  kWeakWord,
  kWeakAsleep,
  kNoSecondCheck,
  kAsleepClearedBeforeWait,
  kBellBeforeFlag,
  kBellLoadedAfterCheck,
  kPhaseWithoutBell,
  kStopWithoutBell,
  kCloseWithoutBell,
  kCloseBellFirst,
  kLeaveWithoutBell,
  kSubmitWithoutBell,
  kWeakPhase,
  kWeakAwaited,
  kAwaitsWithoutSecondCheck,
  // These bugs break a rule of the protocol.
  kOneSlot,
  kWordBeforePayload,
  kSplitWord,
  kPayloadPerPeer,
  kSequenceRestarted,
  kNaivePrefix,
  kReportByWatch,
  kEntersAfterReport,
  kIdentityWithoutStepNumber,
  // These bugs break a rule in the sequences of the algorithms.
  kEntersEarly,
  kRunsBeforeAllArrive,
  kWritesEarly,
  kPhaseBeforeData,
  kConsumesWithoutWaiting,
  kReducesWithoutWaiting,
  kFetchesWithoutWaiting,
  kExposerDoesNotWait,
  kPublishesAfterTheExposerLeft,
  kOnePartTooFew,
  kTwoWindowParts,
  // These bugs break a rule about how members end.
  kRunsClosedStep,
  kRunsProposedStep,
  kClosesWithoutSecondCheck,
  kProposalStays,
  kReturnsWithoutFence,
  kDeathWhileRunning,
};

struct Options {
  int members = 2;
  std::uint32_t steps = 2;
  bool two_phase = false;  // if false, the entries contain the data
  bool polls = false;      // a member checks once before it prepares to sleep
  bool spins = false;      // members never sleep (flows only), which saves states
  int mortal = -1;         // the member that may die while the others watch; −1: none
  bool rollback = false;   // the coordinator stops all members once, at any time
  // From this step on, the identities of the members differ in generation 1.
  std::uint32_t identities_differ_from = ~0u;
  int leaver = -1;           // the member that leaves after its first step; −1: none
  int quitter = -1;          // this member may want to end at any time; −1: none (flows only)
  bool late_submit = false;  // another thread of member 0 submits its last step
  Bug bug = Bug::kNone;
};

// The identity of a step. FlagBoard XORs it with the step's word; the factor 16 keeps these XORs
// different for different steps.
constexpr Value identity_of(std::uint32_t step) { return Value{16} * step; }

// Owns the memory; the threads of the model borrow this memory. A Job can be neither copied nor
// moved.
class Job {
 private:
  Arena arena_;  // the first field, because it owns the memory of the other fields
  Options options_;
  std::byte* bells_;
  std::byte* board_;
  std::deque<ModelDoorbells> doorbells_;

 public:
  explicit Job(const Options& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const Options& options() const { return options_; }
  bool has(Bug bug) const { return options_.bug == bug; }
  std::uint32_t slots() const { return has(Bug::kOneSlot) ? 1 : kSlots; }
  Arena& arena() { return arena_; }
  ModelDoorbells& doorbells(int member) { return doorbells_[static_cast<std::size_t>(member)]; }
  ModelDoorbells::Line& bell_line(int member);
  // The word in which a member publishes for which member it waits.
  ModelAtomics::Atomic<std::uint32_t>& awaited(int member);
  std::byte* board_memory() const { return board_; }
  std::vector<int> ranks() const;
  // Rings all bells without checking who is asleep, as close() does.
  void ring_all();

  // In generation 1, odd members use other identities from step `identities_differ_from` on.
  Value identity(int member, std::uint32_t generation, std::uint32_t step) const;
  std::int64_t payload(int member, std::uint32_t generation, std::uint32_t step) const;
  std::int64_t sum(std::uint32_t generation, std::uint32_t step) const;

  // State that only the checks and the companions use, not the protocol. A vector is indexed by
  // member, unless its comment names another index.
  std::vector<Ghost> reaped;       // 1 once the member is dead and has no store pending
  std::vector<Ghost> inbox;        // messages of the watch thread: 1 stop, 2 answer
  std::vector<Ghost> reports;      // a packed Report
  std::vector<Ghost> progress;     // a packed Report, always up to date, for kReportByWatch
  std::vector<Ghost> completed;    // for each step: the generation in which a member completed it
  std::vector<Ghost> rolled_back;  // for each step: the generation in which a member rolled it back
  Ghost stop;
  Ghost answer;        // the common prefix + 1
  Ghost submitted;     // 1 once the late step is submitted
  Ghost wants_to_end;  // 1 once the quitter wants to end
  // For each member: 1 if its call has failed and it has its memory back.
  std::vector<Ghost> returned;
  // For each step: 1 if a member completed it, 2 if it failed on a member.
  std::vector<Ghost> outcomes;

 private:
  void mark_doorbells();
  template <std::uint32_t Slots>
  void mark_board();
  bool any_member_may_end() const { return options_.mortal >= 0 || options_.quitter >= 0; }
};

// A Report as one value, which is never 0.
constexpr Value pack(const Report& report) {
  return Value{report.completed + 1} << 32 | report.identity << 1 | report.entered;
}
constexpr Report unpack(Value value) {
  Report report = {};
  report.completed = static_cast<std::uint32_t>(value >> 32) - 1;
  report.entered = value & 1;
  report.identity = (value & 0xffffffff) >> 1;
  return report;
}

}  // namespace farandole::model
