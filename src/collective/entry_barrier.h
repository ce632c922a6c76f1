// EntryBarrier: the way into a step that all algorithms share. It enters on the flag board, waits
// until every member has entered, and only then lets the algorithm see the others' memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "collective/group.h"

namespace farandole {

// The flags of it, on any board: the model explorer runs this on its own.
template <class Board>
class BasicEntryBarrier {
 public:
  // `board` is borrowed and outlives this.
  BasicEntryBarrier(Board& board, const StepIdentity& identity)
      : board_(&board), identity_(identity) {}

  Board& board() const { return *board_; }
  const StepIdentity& identity() const { return identity_; }
  bool entered() const { return entered_; }

  // Publishes our entry; what is staged by now counts as staged with phase 0. The step before must
  // be completed.
  void enter(std::int64_t declared_count, std::uint64_t input = kNowhere,
             std::uint64_t output = kNowhere) {
    CHECK(!entered_, "a step is entered once");
    board_->enter(identity_.generation, identity_.sequence,
                  {.identity = identity_.id,
                   .declared_count = declared_count,
                   .input = input,
                   .output = output});
    entered_ = true;
  }

  // kPending until every member has entered; then kMisprediction if an entry is for another step,
  // kMismatch if one makes no sense, else kDone: the step is everybody's for good, and what the
  // members said may be read. If the group was closed before all had entered, kPending for good.
  Progress check_arrivals() const {
    if (!board_->all_entered()) return Progress::kPending;
    bool alike = true;
    bool makes_sense = true;
    for (int member = 0; member < board_->members(); ++member) {
      alike = alike && board_->identity(member) == identity_.id;
      makes_sense = makes_sense && board_->declared_count(member) >= 0;
    }
    if (!alike) return Progress::kMisprediction;
    if (!board_->may_run()) return Progress::kPending;
    return makes_sense ? Progress::kDone : Progress::kMismatch;
  }

  // What a member said when it entered.
  std::int64_t declared_count(int member) const { return board_->declared_count(member); }
  // All members said the same declared count.
  bool declared_counts_equal() const {
    for (int member = 1; member < board_->members(); ++member)
      if (declared_count(member) != declared_count(0)) return false;
    return true;
  }
  // A member lets the others read its input where it is.
  bool exposes_input(int member) const { return board_->input(member) != kNowhere; }
  bool somebody_exposes_input() const {
    for (int member = 0; member < board_->members(); ++member)
      if (exposes_input(member)) return true;
    return false;
  }
  // Somebody has exposed memory, and may have got it back while we read it, for the group ends.
  // Then nobody may hear from us that we have read all, and so nobody completes the step.
  bool is_exposer_gone() const { return somebody_exposes_input() && board_->somebody_is_gone(); }

 private:
  Board* board_;
  StepIdentity identity_;
  bool entered_ = false;
};

// One per step; one thread at a time (the holder of the progress lock).
class EntryBarrier : public BasicEntryBarrier<FlagBoard> {
 public:
  // `group` is borrowed and outlives this.
  EntryBarrier(const Group& group, const StepIdentity& identity)
      : BasicEntryBarrier(*group.board, identity), group_(&group) {}

  const Group& group() const { return *group_; }

  // Enters, and says where our memory is if the others can see it: they may read the input and
  // write the output until they have told us, in a phase, that they need them no more.
  void enter_exposing(std::int64_t declared_count, std::span<const std::byte> input,
                      std::span<const std::byte> output = {});
  // Whether enter_exposing() lets the others see this memory.
  bool is_visible(std::span<const std::byte> memory) const;
  // Whether enter_exposing() lets the others see this memory, and to wait for them in the end costs
  // us less than to stage so many bytes of it.
  bool is_worth_exposing(std::span<const std::byte> memory, std::size_t bytes) const;

  // What a member has exposed; null if it has not, or not as many bytes as that.
  const std::byte* input(int member, std::size_t bytes) const;
  std::byte* output(int member, std::size_t bytes) const;
  // False if a member says that it exposes so many bytes to us, and they do not lie in its heap.
  bool exposes_enough(int member, std::int64_t bytes) const {
    return !exposes_input(member) || input(member, static_cast<std::size_t>(bytes)) != nullptr;
  }

  // The staging memory for this step, kStagingBytesPerSlot: ours, and, once all have met, anyone's.
  std::byte* own_staging() const { return staging_of(group_->member); }
  const std::byte* staging(int member) const { return staging_of(member); }
  // The memory inside the flag line, kInlineBytes: ours before we enter, and, once all have met,
  // anyone's.
  std::byte* own_inline_payload() const { return board().own_inline_payload(identity().sequence); }
  const std::byte* inline_payload(int member) const { return board().inline_payload(member); }

 private:
  std::uint64_t location_of(std::span<const std::byte> memory) const;
  std::byte* exposed(int member, std::uint64_t location, std::size_t bytes) const;
  std::byte* staging_of(int member) const {
    return group_->stagings[static_cast<std::size_t>(member)] +
           identity().sequence % kSlots * kStagingBytesPerSlot;
  }

  const Group* group_;
};

}  // namespace farandole
