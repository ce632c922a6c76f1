// Member: the main thread of a member, which holds the progress lock. It is a small engine around
// the shipped doorbells and flag board. It enters, runs and completes steps, sleeps if it can do
// nothing, reports, rolls back and leaves. From one checkpoint to the next, it makes about one call
// of a shipped class.
#pragma once

#include <array>
#include <cstdint>

#include "automaton.h"
#include "collective/entry_barrier.h"
#include "job.h"

namespace farandole::model {

inline constexpr std::size_t kMembersMax = 4;

// The shipped board, with planted bugs. kIdentityWithoutStepNumber stores identities that are not
// mixed with step numbers.
template <std::uint32_t Slots>
class MemberBoard : public ModelBoard<Slots> {
 public:
  using Base = ModelBoard<Slots>;
  MemberBoard(Job& job, int member)
      : Base(job.board_memory(), member, job.ranks(), job.doorbells(member)), job_(&job) {}

  void enter(std::uint32_t generation, std::uint32_t sequence, Entry entry) {
    entry.identity ^= unmixing_mask(generation, sequence);
    Base::enter(generation, sequence, entry);
  }
  std::uint64_t identity(int member) const {
    return Base::identity(member) ^ unmixing_mask(this->generation(), this->sequence());
  }
  bool all_entered();
  void write_key(ByteWriter& key) const { write_check_state(key, this->check_state_); }

 private:
  std::uint64_t unmixing_mask(std::uint32_t generation, std::uint32_t sequence) const {
    return job_->has(Bug::kIdentityWithoutStepNumber) ? std::uint64_t{generation} << 32 | sequence
                                                      : 0;
  }

  Job* job_;  // borrowed
};

template <std::uint32_t Slots>
class Member final : public CopiedThread<Member<Slots>> {
 public:
  Member(Job& job, int number);

  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return mode_ == Mode::kOver; }
  void run() override;

 private:
  enum class Mode : std::uint8_t { kCheck, kPrepare, kCheckAgain, kAct, kSleep, kOver };
  // What the current step waits for.
  enum class Stage : std::uint8_t { kEnter, kRun, kPhase, kComplete, kMispredicted };
  // What the last check has found to do.
  enum class Task : std::uint8_t { kNothing, kStep, kReport, kFollowAnswer, kLeave, kObserveLeave };

  Task find_task();
  bool step_can_go_on();
  Progress check_arrivals();
  bool check_per_peer();
  void act();
  void act_step();
  void enter();
  void ring_early();
  void unmute_bells();
  void read_entries();
  void finish_step();
  void report();
  void follow_answer();
  void leave();
  void observe_leave();
  void prepare();
  void sleep();
  void after_action();

  std::uint32_t generation() const { return answered_ && step_ > prefix_ ? 2 : 1; }
  std::uint32_t sequence() const;
  Report progress() const;
  void publish_progress();
  bool leaves_now() const;

  Job* job_;  // borrowed
  ModelDoorbells* doorbells_;
  MemberBoard<Slots> board_;
  int number_;
  Mode mode_;
  Stage stage_ = Stage::kEnter;
  Task task_ = Task::kNothing;
  Progress arrivals_ = Progress::kPending;  // the result of the last check_arrivals()
  bool prepared_ = false;
  bool reported_ = false;
  bool answered_ = false;
  std::uint32_t prefix_ = 0;
  std::uint32_t step_ = 1;
  std::uint32_t ticket_ = 0;
  std::array<std::int64_t, kMembersMax> payloads_taken_{};  // for kPayloadPerPeer
  std::uint32_t payloads_step_ = 0;
};

extern template class Member<1>;
extern template class Member<2>;

}  // namespace farandole::model
