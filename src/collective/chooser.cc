#include "collective/chooser.h"

#include <utility>

#include "base/check.h"

namespace farandole {
namespace {

// The costs that the two headers state. What is in memory that the others can see comes cheaper in
// two shots, but nobody knows that before all have entered.
CollectiveStep choose_allreduce(const Group& group, const StepIdentity& identity,
                                const AllreduceOptions& options) {
  const double members = group.members();
  const auto bytes = static_cast<double>(options.bytes());
  const double wait = group.costs.wait_ns * group.costs.bytes_per_ns;  // as many bytes as one takes
  const double one_shot = wait + (members + 3) * bytes;
  const double two_shots = 2 * wait + (5 * members - 2) / members * bytes;
  if (options.bytes() <= OneShotAllreduce::kBytesMax && one_shot <= two_shots)
    return OneShotAllreduce(group, identity, options);
  return TwoShotAllreduce(group, identity, options);
}

}  // namespace

CollectiveStep choose(const Group& group, const StepIdentity& identity, CollectiveCall call) {
  const auto bytes = call.count * static_cast<std::int64_t>(row_of(call.dtype).bytes);
  const Reduction reduction = {.dtype = call.dtype,
                               .op = call.reduce_op,
                               .divisor = group.members(),
                               .prescale = call.prescale,
                               .postscale = call.postscale};
  switch (call.operation) {
    case Operation::kAllreduce:
      return choose_allreduce(group, identity,
                              {.reduction = reduction,
                               .count = call.count,
                               .input = call.input,
                               .output = call.output,
                               .joined = call.joined});
    case Operation::kBroadcast:
      return Broadcast(
          group, identity,
          {.root = call.root, .bytes = bytes, .input = call.input, .output = call.output});
    case Operation::kAllgather:
      return Allgather(group, identity,
                       {.input = call.input,
                        .rows = call.rows,
                        .row_bytes = call.row_bytes,
                        .allocate = std::move(call.allocate)});
    case Operation::kReducescatter:
      return Reducescatter(group, identity,
                           {.reduction = reduction,
                            .rows = call.rows,
                            .row_bytes = call.row_bytes,
                            .input = call.input,
                            .output = call.output});
    case Operation::kAlltoall:
      return Alltoall(group, identity,
                      {.input = call.input,
                       .rows = call.rows,
                       .row_bytes = call.row_bytes,
                       .splits = std::move(call.splits),
                       .allocate = std::move(call.allocate)});
    case Operation::kBarrier:
      return Barrier(group, identity);
    case Operation::kJoin:
      break;
  }
  CHECK(false, "a join is no step of its own, and every other operation has an algorithm");
  return Barrier(group, identity);
}

Progress advance(CollectiveStep& step) {
  return std::visit([](auto& algorithm) { return algorithm.advance(); }, step);
}

}  // namespace farandole
