// The chooser: selects the algorithm for a call. The choice depends only on values that all members
// agree on, so all choose the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <variant>
#include <vector>

#include "collective/allgather.h"
#include "collective/alltoall.h"
#include "collective/barrier.h"
#include "collective/broadcast.h"
#include "collective/group.h"
#include "collective/one_shot_allreduce.h"
#include "collective/reducescatter.h"
#include "collective/two_shot_allreduce.h"
#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

// One member's arguments of one step. The memory is borrowed until the step has ended.
struct CollectiveCall {
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;  // for reductions, like the two scales
  double prescale = 1;
  double postscale = 1;
  int root = 0;                // broadcast: a member of the group, not a world rank
  std::int64_t count = 0;      // allreduce, broadcast: elements of the tensor, the same for all
  std::int64_t rows = 0;       // other operations: the first dimension
  std::int64_t row_bytes = 0;  // other operations: bytes of one row, the same for all members
  // Alltoall: how many rows each member gets from us; the sum is at most `rows`.
  std::vector<std::int64_t> splits = {};
  // Allreduce, allgather: this member has joined. It has no input and no output. In an allreduce it
  // reduces its slice for the others; in an allgather it has no rows.
  bool joined = false;
  const std::byte* input = nullptr;  // broadcast: only used on the root
  std::byte* output = nullptr;       // the operation's row says whether the output may be the input
  // Allgather, alltoall: called once, after all have entered, with the number of rows that we get
  // from each member, in rank order. Returns memory for all these rows. If it returns null, this
  // member gets no result, but it still takes part so that the others get theirs.
  std::function<std::byte*(std::span<const std::int64_t> rows)> allocate = {};
};

// A running step. All algorithms keep these promises:
// - Universal entry: no user memory is written and no member is done before all have entered.
// - When one member's step is kDone, all members have stored every flag that any member still
//   needs. So that member may leave the group at once, and the others finish without waiting for
//   it.
// - If a member leaves earlier or a rank dies, no member completes a step in which it has read
//   exposed memory, because the owner of that memory may already have overwritten it. Such a step
//   stays kPending. A step also stays kPending if the group was closed before all had entered. A
//   caller that sees the end of its group must therefore stop calling advance().
// - A step that not all members have entered can be destroyed after FlagBoard::roll_back; then a
//   new step can use its slot.
// - advance() does about one window of work and never blocks. It must not be called after kDone,
//   kMisprediction or kMismatch. Only one thread at a time may call it: the holder of the progress
//   lock.
using CollectiveStep = std::variant<Barrier, OneShotAllreduce, TwoShotAllreduce, Broadcast,
                                    Allgather, Reducescatter, Alltoall>;

// `group` is borrowed, with its scratch, and must outlive the step. For a reduction,
// check_reduction() must be ok; `splits` must fit `rows`. A join is not a step.
CollectiveStep choose(Group& group, const StepIdentity& identity, CollectiveCall&& call);

Progress advance(CollectiveStep& step);

// The input and the output of the call, if its step may let other members see them; otherwise
// empty. May include memory that the step does not expose after all, but never omits memory that it
// exposes.
std::array<std::span<const std::byte>, 2> exposable_memory(const Group& group,
                                                           const CollectiveCall& call);

// The output memory that the other members of an entered step may write. Call this only if the
// step's entry on the board exposes an output.
std::span<const std::byte> exposed_output(const CollectiveStep& step);

}  // namespace farandole
