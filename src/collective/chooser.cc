#include "collective/chooser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace farandole {
namespace {

// One shot costs 1 wait and moves (p + 3) n bytes; two shots cost 2 waits and move (5p − 2)/p · n
// bytes. So one shot is faster while (p² − 2p + 2) n is at most p times the bytes that a member
// moves in the time of one wait. If the others can see the memory, two shots move fewer bytes. But
// members learn this only after all have entered, so the choice assumes staged data.
bool is_faster_in_one_shot(const Group& group, std::int64_t bytes) {
  const std::int64_t members = group.members();
  const std::int64_t data_factor = members * members - 2 * members + 2;
  return bytes <= OneShotAllreduce::kBytesMax &&
         data_factor * bytes <= members * group.costs.wait_bytes;
}

std::int64_t bytes_of(const CollectiveCall& call) {
  return call.count * static_cast<std::int64_t>(row_of(call.dtype).bytes);
}

}  // namespace

CollectiveStep choose_step(Group& group, const StepIdentity& identity, CollectiveCall&& call) {
  if (group.parts) return group.parts->start_step(group, identity, std::move(call));
  const std::int64_t bytes = bytes_of(call);
  const Reduction reduction = {.dtype = call.dtype,
                               .op = call.reduce_op,
                               .divisor = group.members(),
                               .prescale = call.prescale,
                               .postscale = call.postscale};
  switch (call.operation) {
    case Operation::kAllreduce: {
      const AllreduceOptions options = {.reduction = reduction,
                                        .count = call.count,
                                        .input = call.input,
                                        .output = call.output,
                                        .joined = call.joined};
      if (is_faster_in_one_shot(group, bytes))
        return CollectiveStep(std::in_place_type<OneShotAllreduce>, group, identity, options);
      return CollectiveStep(std::in_place_type<TwoShotAllreduce>, group, identity, options);
    }
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
    case Operation::kSend:
    case Operation::kReceive:
      break;
  }
  CHECK(false, "joins and messages are not steps, and every other operation has an algorithm");
  return Barrier(group, identity);
}

Progress advance(CollectiveStep& step) {
  const auto advance_algorithm = [](auto& algorithm) {
    if constexpr (requires { algorithm->advance(); })
      return algorithm->advance();  // a StepBetweenHosts
    else
      return algorithm.advance();
  };
  return std::visit(advance_algorithm, step);
}

std::array<std::span<const std::byte>, 2> exposable_memory(const Group& group,
                                                           const CollectiveCall& call) {
  if (call.joined || group.members() == 1 || group.parts) return {};
  const bool is_allreduce = call.operation == Operation::kAllreduce;
  // A broadcast uses only the count of elements; operations on rows use only the rows. If a caller
  // sets both the count and the rows, they give the same size. A fused allreduce is the exception:
  // its rows are those of one tensor.
  const std::int64_t bytes =
      std::max(bytes_of(call), is_allreduce ? 0 : call.rows * call.row_bytes);
  if (is_allreduce ? is_faster_in_one_shot(group, bytes)
                   : bytes <= static_cast<std::int64_t>(kInlineBytes))
    return {};
  const auto size = static_cast<std::size_t>(bytes);
  std::array<std::span<const std::byte>, 2> memory;
  // In a broadcast, only the root has an input.
  if (call.input != nullptr) memory[0] = {call.input, size};
  if (is_allreduce) memory[1] = {call.output, size};
  return memory;
}

std::span<const std::byte> exposed_output(const CollectiveStep& step) {
  const auto* const two_shots = std::get_if<TwoShotAllreduce>(&step);
  return two_shots != nullptr ? two_shots->output() : std::span<const std::byte>();
}

}  // namespace farandole
