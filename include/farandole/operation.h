// The collective operations and the ways to combine elements, one row each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace farandole {

enum class Operation : std::uint8_t { kAllreduce, kBroadcast, kAllgather, kBarrier };

// Which dimensions of a tensor must be equal on all ranks.
enum class ShapeRule : std::uint8_t { kAll, kAllButFirst, kNone };

struct OperationRow {
  Operation operation;
  std::string_view name;
  ShapeRule shape_rule;
};

// Indexed by Operation; the order is part of the protocol between ranks of one job.
inline constexpr std::array<OperationRow, 4> kOperations = {{
    {Operation::kAllreduce, "allreduce", ShapeRule::kAll},
    {Operation::kBroadcast, "broadcast", ShapeRule::kAll},
    {Operation::kAllgather, "allgather", ShapeRule::kAllButFirst},
    {Operation::kBarrier, "barrier", ShapeRule::kNone},
}};

constexpr const OperationRow& row_of(Operation operation) {
  return kOperations[static_cast<std::size_t>(operation)];
}

enum class ReduceOp : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct };

// Indexed by ReduceOp; the order is part of the protocol between ranks of one job.
inline constexpr std::array<std::string_view, 5> kReduceOpNames = {"sum", "average", "min", "max",
                                                                   "product"};

constexpr std::string_view name_of(ReduceOp op) {
  return kReduceOpNames[static_cast<std::size_t>(op)];
}

}  // namespace farandole
