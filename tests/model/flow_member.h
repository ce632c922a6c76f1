// FlowMember: the main thread of a member that runs the steps of a flow. It runs the shipped
// sequences of flags. Its data operations move words of the model, and check each word that they
// read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>

#include "automaton.h"
#include "collective/rounds.h"
#include "collective/two_shots.h"
#include "flow_job.h"

namespace farandole::model {

inline constexpr std::size_t kWindowsMax = 4;

// The shipped flag board, with planted bugs.
template <std::uint32_t Slots>
class BoardWithBug : public ModelBoard<Slots> {
 public:
  BoardWithBug(FlowJob& job, int member);

  void publish_phase(std::uint32_t phase);
  bool all_entered();
  bool all_reached(std::uint32_t phase);
  bool any_member_gone() const;
  bool may_run();
  bool try_close();
  void write_key(ByteWriter& key) const {
    if (!job_->options().spins) write_check_state(key, this->check_state_);
  }

 private:
  // Planted bugs change this word themselves, without the functions of the shipped board.
  ModelAtomics::Atomic<std::uint64_t>& closing_word() const;

  // A spinning member does not publish for which member it waits, and begins each check with member
  // 0. This reduces the number of states. The published member makes a difference only for members
  // that sleep.
  void begin_check() {
    if (job_->options().spins) this->check_state_ = {.publishes_awaited = false};
  }

  FlowJob* job_;  // borrowed
};

// The shipped entry barrier, with planted bugs.
template <std::uint32_t Slots>
class EntryBarrierWithBug : public BasicEntryBarrier<BoardWithBug<Slots>> {
 public:
  using Base = BasicEntryBarrier<BoardWithBug<Slots>>;
  EntryBarrierWithBug(FlowJob& job, BoardWithBug<Slots>& board, const StepIdentity& identity)
      : Base(board, identity), job_(&job) {}

  Progress check_arrivals() const {
    return job_->has(Bug::kRunsBeforeAllArrive) ? Progress::kDone : Base::check_arrivals();
  }

 private:
  FlowJob* job_;  // borrowed
};

template <std::uint32_t Slots>
class FlowMember final : public CopiedThread<FlowMember<Slots>> {
 public:
  FlowMember(FlowJob& job, int number);

  void write_key(ByteWriter& key) const override;
  bool has_finished() const override { return mode_ == Mode::kOver; }
  void run() override;

  // The functions that the shipped sequences call.
  using EntryBarrierType = EntryBarrierWithBug<Slots>;
  void stage(std::int64_t window);
  void enter(EntryBarrierType& entry_barrier);
  std::optional<std::int64_t> on_all_arrived();
  bool consume(std::int64_t round);
  bool reduce(std::int64_t window);
  void fetch(std::int64_t window);

 private:
  // Stands for the shipped Barrier, which cannot run on model memory because it is not a template.
  struct Barrier {
    EntryBarrierType entry_barrier;
  };
  using Sequence =
      std::variant<Barrier, BasicRounds<EntryBarrierType>, BasicTwoShots<EntryBarrierType>>;
  enum class Mode : std::uint8_t { kBegin, kRound, kPrepare, kSleep, kOver };
  // What happens to the current step after a death or a leave: the step completes (kept), or it
  // fails (abandoned).
  enum class Ending : std::uint8_t { kNone, kKept, kAbandoned };
  using Cell = FlowJob::Cell;

  BoardWithBug<Slots>& board() const { return *running_board_; }
  Sequence sequence_of(std::uint32_t step) const;
  void begin();
  void run_round();
  void end();
  void check_whether_to_end();
  void continue_or_sleep(bool has_advanced);
  void wait_for_writers();
  bool any_member_may_write() const;
  void fail();
  Progress advance();
  void finish_step();
  void get_memory_back();
  void fill_memory(std::uint32_t step);
  void enter_next_step();
  void write_early();
  void wake_up();

  bool exposes() const { return job_->exposes(number_); }
  bool is_two_shots() const { return job_->flow().algorithm == FlowAlgorithm::kTwoShots; }
  Value& own_memory(std::int64_t window, int slice) {
    return memory_[static_cast<std::size_t>(window)][static_cast<std::size_t>(slice)];
  }
  void expect(Value actual, Value expected, const char* what_broke) const;
  void expect_unless_given_back(Value actual, Value expected, const char* what_broke);
  Value result_in_memory(std::int64_t window, int slice);

  FlowJob* job_;  // borrowed
  ModelDoorbells* doorbells_;
  int number_;
  BoardWithBug<Slots> board_;  // as it was at the last checkpoint
  // The board that the sequences refer to. All copies of this thread share this board; only one
  // copy runs at a time.
  std::shared_ptr<BoardWithBug<Slots>> running_board_;
  Sequence sequence_;
  Mode mode_ = Mode::kBegin;
  Ending ending_ = Ending::kNone;
  bool any_member_left_ = false;  // at the last check
  bool any_member_died_ = false;
  bool prepared_ = false;
  std::uint32_t ticket_ = 0;
  std::uint32_t step_ = 1;
  // How far the sequence has come: hook_calls_ counts the calls of stage(), enter() and the other
  // functions that the sequences call. advances_ counts the rounds that have advanced the sequence.
  std::uint32_t hook_calls_ = 0;
  std::uint32_t advances_ = 0;
  // This member has read memory after the memory was given back to its owner, or a sum that
  // contains a value from such memory.
  bool read_after_give_back_ = false;
  // Private memory of this member: the input, which the output overwrites.
  std::array<std::array<Value, kFlowMembersMax>, kWindowsMax> memory_{};
};

extern template class FlowMember<1>;
extern template class FlowMember<2>;

}  // namespace farandole::model
