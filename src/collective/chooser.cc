#include "collective/chooser.h"

#include <utility>

#include "base/check.h"

namespace farandole {

CollectiveStep choose(const Group& group, const StepIdentity& identity, CollectiveCall call) {
  const auto bytes = call.count * static_cast<std::int64_t>(row_of(call.dtype).bytes);
  switch (call.operation) {
    case Operation::kAllreduce:
      return StagedAllreduce(group, identity,
                             {.dtype = call.dtype,
                              .op = call.reduce_op,
                              .count = call.count,
                              .input = call.input,
                              .output = call.output});
    case Operation::kBroadcast:
      return StagedBroadcast(
          group, identity,
          {.root = call.root, .bytes = bytes, .input = call.input, .output = call.output});
    case Operation::kAllgather:
      return StagedAllgather(group, identity,
                             {.input = call.input,
                              .rows = call.rows,
                              .row_bytes = call.row_bytes,
                              .allocate = std::move(call.allocate)});
    case Operation::kBarrier:
      break;
  }
  CHECK(call.operation == Operation::kBarrier, "every operation has an algorithm");
  return Barrier(group, identity);
}

Progress advance(CollectiveStep& step) {
  return std::visit([](auto& algorithm) { return algorithm.advance(); }, step);
}

}  // namespace farandole
