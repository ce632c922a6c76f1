// A flow: steps of one algorithm, one after another, with the flags and the memory that they share.
// The flags are those of the shipped code. Instead of whole buffers, the algorithms move a few
// words: one for each place that could be overwritten or read too early.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "job.h"
#include "scenario.h"

namespace farandole::model {

inline constexpr std::size_t kFlowMembersMax = 4;

enum class FlowAlgorithm : std::uint8_t { kBarrier, kRounds, kTwoShots };

struct Flow {
  FlowAlgorithm algorithm = FlowAlgorithm::kRounds;
  std::int64_t rounds = 1;                         // the number of rounds or windows
  bool is_inline = false;                          // the data of the only round is in the flag line
  std::array<bool, kFlowMembersMax> exposes = {};  // whether each member exposes its memory
  std::uint32_t misprediction_at = 0;  // in this step, odd members have another identity; 0: none

  bool any_member_exposes() const;
};

class FlowJob : public Job {
 public:
  using Cell = ModelAtomics::Atomic<std::uint64_t>;
  using Line = ModelBoard<kSlots>::Line;

  FlowJob(const Flow& flow, const Options& options);

  const Flow& flow() const { return flow_; }
  bool exposes(int member) const { return flow_.exposes[static_cast<std::size_t>(member)]; }
  bool all_expose() const;

  // The input of a member in a window (or round) of a step, and the sum of the inputs of all
  // members in this window.
  static Value input_value(int member, std::uint32_t step, std::int64_t window);
  Value input_sum(std::uint32_t step, std::int64_t window) const;

  // The staging memory of a member, by round or window: its copies, which the others read, and the
  // results that it has reduced.
  Cell& copy_cell(int member, std::uint32_t step, std::int64_t window);
  Cell& result_cell(int member, std::uint32_t step, std::int64_t window);
  // The memory that a member exposes. `slice` is the number of the member that reduces this slice;
  // 0 if no member does.
  Cell& exposed_cell(int member, std::int64_t window, int slice);

  // Reads a cell. No other thread runs between the previous operation and this read.
  Value read_uninterleaved(const Cell& cell);
  // Guards for all exposed memory: after a call has failed on the owner of memory, only the owner
  // may write this memory.
  std::vector<Scenario::Guard> guards();

 private:
  void allocate_staging();
  void allocate_exposed();
  void mark_constants();
  Cell* cell(const std::string& name, Site site, int owner);
  std::int64_t part(std::uint32_t step, std::int64_t window) const;
  std::uint32_t slot(std::uint32_t step) const { return step % slots(); }

  Flow flow_;
  std::int64_t copies_per_slot_;
  std::int64_t results_per_slot_;
  int slices_;
  std::vector<Cell*> copy_cells_;
  std::vector<Cell*> result_cells_;
  std::vector<Cell*> exposed_cells_;
};

}  // namespace farandole::model
