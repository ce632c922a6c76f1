#include "lane_zero.h"

#include <variant>

#include "base/check.h"

namespace farandole::sim {
namespace {

StepNumber number_of(const StepIdentity& step) { return {step.generation, step.sequence}; }

}  // namespace

LaneZero::LaneZero(int parts, int own_part, const Flaws& flaws)
    : own_part_(own_part), flaws_(flaws), parts_(static_cast<std::size_t>(parts)) {}

void LaneZero::take(int from, const Frame& frame) {
  auto& part = parts_[static_cast<std::size_t>(from)];
  if (const auto* entry = std::get_if<EntryFrame>(&frame))
    take_entry(part, *entry);
  else
    take_end(part, std::get<EndFrame>(frame));
}

void LaneZero::take_entry(Part& part, const EntryFrame& frame) {
  auto step = frame.step;
  if (flaws_.drops_entries_of_a_newer_generation && step.generation > generation_) return;
  if (flaws_.entries_have_no_generation) step.generation = 1;
  part.entries.store(step, {});
}

// A host part answers an EndFrame only if it has sent no entry of the step that the frame names,
// and no entry of a later step. If it has sent such an entry, no other host waits for a further
// entry of this host part.
void LaneZero::take_end(Part& part, const EndFrame& frame) {
  part.end = frame;
  if (closed_by_) return;
  closed_by_ = frame.rank;
  if (last_entered_ == frame.entered || last_entered_.sequence > frame.entered.sequence) return;
  if (flaws_.does_not_answer_an_end) return;
  has_answered_ = true;
  send_to_all(EndFrame{last_entered_, frame.rank});
}

void LaneZero::enter(const StepIdentity& step) {
  CHECK(!closed_by_ || flaws_.enters_after_its_end, "a closed host part enters nothing");
  last_entered_ = number_of(step);
  generation_ = step.generation;
  send_to_all(EntryFrame{step});
}

bool LaneZero::has_entered(const StepIdentity& step) const {
  return last_entered_ == number_of(step);
}

const PeerEntries::Entry* LaneZero::find(const Part& part, const StepIdentity& step) const {
  const auto generation = flaws_.entries_have_no_generation ? 1 : step.generation;
  return part.entries.find(generation, step.sequence);
}

LaneZero::StepState LaneZero::state_of(const StepIdentity& step) const {
  bool is_complete = true;
  bool all_equal = true;
  const int end = static_cast<int>(parts_.size()) - (flaws_.does_not_await_the_last_host ? 1 : 0);
  for (int number = 0; number < end; ++number) {
    if (number == own_part_) continue;
    const auto& part = parts_[static_cast<std::size_t>(number)];
    if (const auto* entry = find(part, step)) {
      all_equal = all_equal && entry->step.id == step.id;
      continue;
    }
    // The last entry of a closed host part may still be on its way.
    const bool may_come = !part.end || part.end->entered == number_of(step) ||
                          part.end->entered.sequence > step.sequence;
    if (!may_come) return StepState::kNeverEntered;
    is_complete = false;
  }
  if (flaws_.all_entered_flag_before_all_entries) is_complete = true;
  if (!is_complete) return StepState::kOpen;
  return all_equal || flaws_.does_not_compare_entries ? StepState::kEnteredByAll
                                                      : StepState::kMispredicted;
}

void LaneZero::close(int rank) {
  if (closed_by_) return;
  closed_by_ = rank;
  if (!flaws_.sends_no_end) send_to_all(EndFrame{last_entered_, rank});
}

void LaneZero::send_to_all(const Frame& frame) {
  for (int part = 0; part < static_cast<int>(parts_.size()); ++part)
    if (part != own_part_) outgoing_.emplace_back(part, frame);
}

std::optional<std::pair<int, Frame>> LaneZero::next_frame() {
  if (outgoing_.empty()) return std::nullopt;
  auto frame = std::move(outgoing_.front());
  outgoing_.pop_front();
  return frame;
}

}  // namespace farandole::sim
