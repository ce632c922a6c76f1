#include "flow_job.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "collective/rounds.h"

namespace farandole::model {
namespace {

constexpr Value kSumBit = Value{1} << 32;
constexpr std::int64_t kWindowParts = 3;  // the fewest that two_shots.h allows

}  // namespace

bool Flow::any_member_exposes() const {
  return std::any_of(exposes.begin(), exposes.end(), [](bool exposed) { return exposed; });
}

FlowJob::FlowJob(const Flow& flow, const Options& options)
    : Job(options),
      flow_(flow),
      slices_(flow.algorithm == FlowAlgorithm::kTwoShots ? options.members : 1) {
  const bool two_shots = flow.algorithm == FlowAlgorithm::kTwoShots;
  copies_per_slot_ = two_shots ? kWindowParts : kPartsMin;
  if (has(Bug::kOnePartTooFew) || has(Bug::kTwoWindowParts)) --copies_per_slot_;
  copies_per_slot_ = std::min(copies_per_slot_, flow.rounds);
  results_per_slot_ = two_shots ? copies_per_slot_ : 0;
  if (flow.algorithm != FlowAlgorithm::kBarrier) allocate_staging();
  allocate_exposed();
  mark_constants();
}

FlowJob::Cell* FlowJob::cell(const std::string& name, Site site, int owner) {
  auto* const place = reinterpret_cast<Cell*>(arena().allocate(sizeof(Cell)));
  arena().mark(place, name, site, owner);
  return place;
}

void FlowJob::allocate_staging() {
  for (int member = 0; member < options().members; ++member) {
    for (std::uint32_t slot = 0; slot < slots(); ++slot) {
      // Exposed memory needs no copy. If all members expose, no member fetches a result.
      for (std::int64_t part = 0; part < copies_per_slot_; ++part)
        copy_cells_.push_back(exposes(member) || flow_.is_inline
                                  ? nullptr
                                  : cell(format_text("slot {} copy {}[{}]", slot, part, member),
                                         Site::kData, member));
      for (std::int64_t part = 0; part < results_per_slot_; ++part)
        result_cells_.push_back(all_expose()
                                    ? nullptr
                                    : cell(format_text("slot {} result {}[{}]", slot, part, member),
                                           Site::kData, member));
    }
  }
}

void FlowJob::allocate_exposed() {
  for (int member = 0; member < options().members; ++member)
    for (std::int64_t window = 0; window < flow_.rounds; ++window)
      for (int slice = 0; slice < slices_; ++slice)
        exposed_cells_.push_back(
            exposes(member)
                ? cell(format_text("memory {}.{}[{}]", window, slice, member), Site::kOther,
                       slices_ == 1 || slice == member ? member : Arena::kNoOwner)
                : nullptr);
}

// Words that are the same in all steps need no interleaving.
void FlowJob::mark_constants() {
  const auto* header = reinterpret_cast<const ModelDoorbells::Header*>(
      reinterpret_cast<const std::byte*>(&bell_line(0)) - sizeof(ModelDoorbells::Header));
  if (options().quitter < 0) arena().mark_constant(&header->leavers, "leavers", 0);
  const auto* lines = reinterpret_cast<const Line*>(board_memory());
  for (int member = 0; member < options().members; ++member) {
    const bool exposed = exposes(member);
    if (options().spins) arena().mark_constant(&bell_line(member).asleep, "asleep", 0);
    for (std::uint32_t slot = 0; slot < slots(); ++slot) {
      const Line& line = lines[static_cast<std::uint32_t>(member) * slots() + slot];
      const Value input = exposed ? static_cast<Value>(member) : kNoLocation;
      arena().mark_constant(&line.declared_count, "declared count", 0);
      arena().mark_constant(&line.input, "input", input);
      arena().mark_constant(&line.output, "output",
                            flow_.algorithm == FlowAlgorithm::kTwoShots ? input : kNoLocation);
      if (flow_.is_inline)
        arena().mark(line.inline_payload.data(), format_text("slot {} inline[{}]", slot, member),
                     Site::kPayload, member);
    }
  }
}

bool FlowJob::all_expose() const {
  return std::all_of(flow_.exposes.begin(), flow_.exposes.begin() + options().members,
                     [](bool exposed) { return exposed; });
}

Value FlowJob::input_value(int member, std::uint32_t step, std::int64_t window) {
  return Value{step} << 16 | static_cast<Value>(window) << 8 | static_cast<Value>(member + 1);
}

Value FlowJob::input_sum(std::uint32_t step, std::int64_t window) const {
  Value sum = kSumBit;
  for (int member = 0; member < options().members; ++member)
    sum += input_value(member, step, window);
  return sum;
}

FlowJob::Cell& FlowJob::copy_cell(int member, std::uint32_t step, std::int64_t window) {
  const std::int64_t line = std::int64_t{member} * slots() + slot(step);
  return *copy_cells_[static_cast<std::size_t>(line * copies_per_slot_ + part(step, window))];
}

// Returns the part in which a window lies. In rounds that use all parts, the shipped code chooses
// the part. Otherwise, the windows use the parts one after another.
std::int64_t FlowJob::part(std::uint32_t step, std::int64_t window) const {
  if (flow_.algorithm != FlowAlgorithm::kRounds || copies_per_slot_ < kPartsMin)
    return window % copies_per_slot_;
  const Parts parts = {.bytes = 1, .rounds = flow_.rounds, .staging_bytes = copies_per_slot_};
  return parts.offset({.sequence = step}, window);
}

FlowJob::Cell& FlowJob::result_cell(int member, std::uint32_t step, std::int64_t window) {
  const std::int64_t line = std::int64_t{member} * slots() + slot(step);
  return *result_cells_[static_cast<std::size_t>(line * results_per_slot_ +
                                                 window % results_per_slot_)];
}

FlowJob::Cell& FlowJob::exposed_cell(int member, std::int64_t window, int slice) {
  return *exposed_cells_[static_cast<std::size_t>((member * flow_.rounds + window) * slices_ +
                                                  slice)];
}

Value FlowJob::read_uninterleaved(const Cell& cell) {
  return arena().execution().perform(
      {.action = Action::kLoad, .is_ghost = true, .word = arena().word_of(&cell)});
}

std::vector<Scenario::Guard> FlowJob::guards() {
  std::vector<Scenario::Guard> all_guards;
  for (int member = 0; member < options().members; ++member)
    for (std::int64_t window = 0; exposes(member) && window < flow_.rounds; ++window)
      for (int slice = 0; slice < slices_; ++slice)
        all_guards.push_back({arena().word_of(&exposed_cell(member, window, slice)),
                              returned[static_cast<std::size_t>(member)], member});
  return all_guards;
}

}  // namespace farandole::model
