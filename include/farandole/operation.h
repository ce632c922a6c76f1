// The operations and the ways to combine elements, one row each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace farandole {

enum class Operation : std::uint8_t {
  kAllreduce,
  kBroadcast,
  kAllgather,
  kBarrier,
  kReducescatter,
  kAlltoall,
  kJoin,  // this rank has no more data; it takes part without data until all have called join()
  kSend,  // a message to one other rank of the group
  kReceive,
};

// Which dimensions of a tensor must be equal on all ranks.
enum class ShapeRule : std::uint8_t { kAll, kAllButFirst, kNone };

// Where the result goes.
enum class OutputRule : std::uint8_t {
  kNone,          // the operation has no tensor
  kCallerMemory,  // in memory of the caller, who knows the size of the result
  kEngineMemory,  // in memory of the engine, because the size of the result depends on the other
                  // ranks
};

struct OperationRow {
  Operation operation;
  std::string_view name;
  ShapeRule shape_rule;
  OutputRule output_rule;
  bool reduces = false;          // uses reduce_op, prescale and postscale
  bool rooted = false;           // uses root_rank: only the root's input is read
  bool has_splits = false;       // uses splits
  bool may_be_in_place = false;  // false: the output must not be the input
  // True: the operation may run while some members have joined. The joined members take part
  // without data, so an allreduce combines only the tensors of the others, and an allgather returns
  // only the rows of the others. Other operations are rejected.
  bool allowed_while_joined = false;
  bool fusible = false;     // calls with the same dtype, reduce op and scales may share a transfer
  bool is_message = false;  // concerns two ranks; uses peer, tag and channel
};

// Indexed by Operation; the order is part of the protocol between ranks of one job.
inline constexpr std::array<OperationRow, 9> kOperationRows = {{
    {.operation = Operation::kAllreduce,
     .name = "allreduce",
     .shape_rule = ShapeRule::kAll,
     .output_rule = OutputRule::kCallerMemory,
     .reduces = true,
     .may_be_in_place = true,
     .allowed_while_joined = true,
     .fusible = true},
    {.operation = Operation::kBroadcast,
     .name = "broadcast",
     .shape_rule = ShapeRule::kAll,
     .output_rule = OutputRule::kCallerMemory,
     .rooted = true,
     .may_be_in_place = true},
    {.operation = Operation::kAllgather,
     .name = "allgather",
     .shape_rule = ShapeRule::kAllButFirst,
     .output_rule = OutputRule::kEngineMemory,
     .allowed_while_joined = true},
    {.operation = Operation::kBarrier,
     .name = "barrier",
     .shape_rule = ShapeRule::kNone,
     .output_rule = OutputRule::kNone},
    {.operation = Operation::kReducescatter,
     .name = "reducescatter",
     .shape_rule = ShapeRule::kAll,
     .output_rule = OutputRule::kCallerMemory,
     .reduces = true},
    {.operation = Operation::kAlltoall,
     .name = "alltoall",
     .shape_rule = ShapeRule::kAllButFirst,
     .output_rule = OutputRule::kEngineMemory,
     .has_splits = true},
    {.operation = Operation::kJoin,
     .name = "join",
     .shape_rule = ShapeRule::kNone,
     .output_rule = OutputRule::kNone},
    {.operation = Operation::kSend,
     .name = "send",
     .shape_rule = ShapeRule::kAll,
     .output_rule = OutputRule::kCallerMemory,
     .is_message = true},
    {.operation = Operation::kReceive,
     .name = "recv",
     .shape_rule = ShapeRule::kAll,
     .output_rule = OutputRule::kCallerMemory,
     .is_message = true},
}};

// The collective operations: all operations except messages. All members of a group take part in
// them.
inline constexpr std::span<const OperationRow> kOperations = std::span(kOperationRows).first(7);

constexpr const OperationRow& row_of(Operation operation) {
  return kOperationRows[static_cast<std::size_t>(operation)];
}

// Reduce-scatter splits the first dimension: the first `rows` mod `members` members get one row
// more than the others.
constexpr std::int64_t scattered_rows(std::int64_t rows, int members, int member) {
  return rows / members + (member < rows % members ? 1 : 0);
}
constexpr std::int64_t first_scattered_row(std::int64_t rows, int members, int member) {
  const std::int64_t larger_shares = rows % members;
  return rows / members * member + (member < larger_shares ? member : larger_shares);
}

// The first six values have Horovod's numbers, because scripts may pass these numbers instead of
// names.
enum class ReduceOp : std::uint8_t {
  kAverage,  // divides by the number of all members, including those that have joined
  kSum,
  kAdasum,  // averages parallel components and adds orthogonal ones; only for float allreduces
  kMin,
  kMax,
  kProduct,
  kAverageOfPresent,  // divides by the number of members that have not joined
};

// Indexed by ReduceOp; the order is part of the protocol between ranks of one job.
inline constexpr std::array<std::string_view, 7> kReduceOpNames = {
    "average", "sum", "adasum", "min", "max", "product", "average_of_present"};

constexpr std::string_view name_of(ReduceOp op) {
  return kReduceOpNames[static_cast<std::size_t>(op)];
}

// Whether calls with this operation and reduce op may share a transfer. An Adasum may not, because
// its weights are computed for each tensor as a whole.
constexpr bool may_be_fused(Operation operation, ReduceOp op) {
  return row_of(operation).fusible && op != ReduceOp::kAdasum;
}

}  // namespace farandole
