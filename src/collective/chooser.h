// The chooser: from what a call wants to the algorithm that does it. The choice follows from values
// that all members agree on, so all choose the same.
#pragma once

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

// What one member brings to one step. The memory is borrowed until the step is over.
struct CollectiveCall {
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;  // of a reduction, as the two scales
  double prescale = 1;
  double postscale = 1;
  int root = 0;                // broadcast: a member of the group, not a world rank
  std::int64_t count = 0;      // elements of the tensor, the same for all; allreduce, broadcast
  std::int64_t rows = 0;       // the first dimension; all but allreduce and broadcast
  std::int64_t row_bytes = 0;  // bytes of one row, the same for all members; where rows are
  // Alltoall: how many rows each member gets from us; their sum is at most `rows`.
  std::vector<std::int64_t> splits = {};
  // Allreduce: this member has joined. It brings no input and wants no output, but reduces its part
  // for the others.
  bool joined = false;
  const std::byte* input = nullptr;  // broadcast: root only
  std::byte* output = nullptr;       // allreduce, broadcast: may equal input; reduce-scatter: apart
  // Allgather, alltoall: called once, when all have entered: the rows that each member brings us,
  // in rank order → memory for all of them, one after another. Null means that we cannot keep the
  // result: we still take part, so that the others get theirs.
  std::function<std::byte*(std::span<const std::int64_t> rows)> allocate = {};
};

// A step on its way. All algorithms keep these promises:
// - universal entry: no user memory is written and nobody is done before all have entered;
// - once a member is done, all have stored every flag that anybody still needs: it may leave at
//   once, and the others finish without waiting;
// - when a member has left before that, or a rank has died, nobody completes a step with what it
//   has read of memory that is lent: the owner may have it back;
// - dropping a step that not all have entered leaves no trace (FlagBoard::withdraw comes with it);
// - advance() does about one window of work, blocks never, and must not be called after kDone,
//   kSurprise or kMismatch. One thread at a time (the baton's holder).
using CollectiveStep = std::variant<Barrier, OneShotAllreduce, TwoShotAllreduce, Broadcast,
                                    Allgather, Reducescatter, Alltoall>;

// `group` is borrowed and outlives the step. check_reduction() must hold for a reduction, and
// `splits` must fit `rows`. A join is no step of its own.
CollectiveStep choose(const Group& group, const StepIdentity& identity, CollectiveCall&& call);

Progress advance(CollectiveStep& step);

}  // namespace farandole
