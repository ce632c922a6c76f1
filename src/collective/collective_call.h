// CollectiveCall: what one member passes to the chooser for one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

// One member's arguments of one step. The memory is borrowed until the step has ended.
struct CollectiveCall {
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;  // used only by reductions, like the two scales
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
  const std::byte* input = nullptr;  // in a broadcast, only the root's input is used
  std::byte* output = nullptr;       // may be the input if OperationRow::may_be_in_place
  // Allgather, alltoall: called once, after all have entered, with the number of rows that we get
  // from each member, in rank order. Returns memory for all these rows. If it returns null, this
  // member gets no result, but it still takes part so that the others get theirs.
  std::function<std::byte*(std::span<const std::int64_t> rows)> allocate = {};
};

}  // namespace farandole
