// EntryBarrier: how every algorithm enters a step. It publishes our entry on the flag board, tells
// when every member has entered, and then gives access to the memory of the other members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "collective/group.h"

namespace farandole {

// The part of EntryBarrier that uses only flags. It is a template so that the model explorer can
// run it on its own board type.
template <class Board>
class BasicEntryBarrier {
 public:
  // `board` is borrowed and must outlive this object.
  BasicEntryBarrier(Board& board, const StepIdentity& identity)
      : board_(&board), identity_(identity) {}

  Board& board() const { return *board_; }
  const StepIdentity& identity() const { return identity_; }
  bool has_entered() const { return entered_; }

  // Publishes our entry. Data staged before this call belongs to phase 0. The previous step must be
  // completed.
  void enter(std::int64_t declared_count, std::uint64_t input = kNoLocation,
             std::uint64_t output = kNoLocation) {
    CHECK(!entered_, "a step is entered once");
    board_->enter(identity_.generation, identity_.sequence,
                  {.identity = identity_.id,
                   .declared_count = declared_count,
                   .input = input,
                   .output = output});
    entered_ = true;
  }

  // Returns kPending until every member has entered. Then it returns kMisprediction if an entry is
  // for another step, kMismatch if an entry is invalid, and otherwise kDone. After kDone the step
  // will not be rolled back, and the entries of all members may be read. If the group was closed
  // before all had entered, the result stays kPending.
  Progress check_arrivals() const {
    if (!board_->all_entered()) return Progress::kPending;
    bool same_identities = true;
    bool is_valid = true;
    for (int member = 0; member < board_->members(); ++member) {
      same_identities = same_identities && board_->identity(member) == identity_.id;
      is_valid = is_valid && board_->declared_count(member) >= 0;
    }
    if (!same_identities) return Progress::kMisprediction;
    if (!board_->may_run()) return Progress::kPending;
    return is_valid ? Progress::kDone : Progress::kMismatch;
  }

  // The count that a member published when it entered.
  std::int64_t declared_count(int member) const { return board_->declared_count(member); }
  // Whether all members published the same declared count.
  bool declared_counts_equal() const {
    for (int member = 1; member < board_->members(); ++member)
      if (declared_count(member) != declared_count(0)) return false;
    return true;
  }
  // Whether a member lets the others read its input in place.
  bool exposes_input(int member) const { return board_->input(member) != kNoLocation; }
  bool any_member_exposes_input() const {
    for (int member = 0; member < board_->members(); ++member)
      if (exposes_input(member)) return true;
    return false;
  }
  // True if a member has exposed its input and the group is ending. The program of that member may
  // then have overwritten the input while we read it. In this case we must not publish that we have
  // read the input, so that no member completes the step.
  bool exposed_input_may_have_changed() const {
    return any_member_exposes_input() && board_->any_member_gone();
  }

 private:
  Board* board_;
  StepIdentity identity_;
  bool entered_ = false;
};

// One object per step. Only one thread at a time may use it: the holder of the progress lock.
class EntryBarrier : public BasicEntryBarrier<FlagBoard> {
 public:
  // `group` is borrowed and must outlive this object.
  EntryBarrier(const Group& group, const StepIdentity& identity)
      : BasicEntryBarrier(*group.board, identity), group_(&group) {}

  const Group& group() const { return *group_; }

  // Enters, and exposes our memory if the others can see it. The others may read the input and
  // write the output until they publish a phase which says that they are done.
  void enter_exposing(std::int64_t declared_count, std::span<const std::byte> input,
                      std::span<const std::byte> output = {});
  // Whether enter_exposing() lets the others see this memory.
  bool is_visible(std::span<const std::byte> memory) const;
  // True if enter_exposing() lets the others see this memory, and if the wait for them at the end
  // of the step takes less time than staging `bytes` bytes.
  bool is_worth_exposing(std::span<const std::byte> memory, std::size_t bytes) const;

  // The memory that a member has exposed. Null if it has exposed no memory, or fewer than `bytes`
  // bytes.
  const std::byte* input(int member, std::size_t bytes) const;
  std::byte* output(int member, std::size_t bytes) const;
  // False if the entry of a member exposes an input whose `bytes` bytes are not completely in the
  // heap of that member.
  bool exposes_enough(int member, std::int64_t bytes) const {
    return !exposes_input(member) || input(member, static_cast<std::size_t>(bytes)) != nullptr;
  }

  // The staging memory (kStagingBytesPerSlot) of this step. We may read the staging memory of other
  // members only after all have entered.
  std::byte* own_staging() const { return staging_of(group_->member); }
  const std::byte* staging(int member) const { return staging_of(member); }
  // The inline payload (kInlineBytes) in the flag line. We may write our payload only before we
  // enter, and read the payload of any member only after all have entered.
  std::byte* own_inline_payload() const { return board().own_inline_payload(identity().sequence); }
  const std::byte* inline_payload(int member) const { return board().inline_payload(member); }

 private:
  std::uint64_t location_of(std::span<const std::byte> memory) const;
  std::byte* exposed_memory(int member, std::uint64_t location, std::size_t bytes) const;
  std::byte* staging_of(int member) const {
    return group_->stagings[static_cast<std::size_t>(member)] +
           identity().sequence % kSlots * kStagingBytesPerSlot;
  }

  const Group* group_;
};

}  // namespace farandole
