// Signature: everything about a submission that must be equal on all members of its group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole {

struct Signature {
  std::string name;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;  // kSum where it has no meaning
  std::int32_t root_rank = 0;           // 0 where it has no meaning
  // The dimensions that must be equal, by the operation's ShapeRule: all, all but the first, none.
  std::vector<std::int64_t> dimensions;

  friend bool operator==(const Signature&, const Signature&) = default;
};

}  // namespace farandole
