#include "engine/submission_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/try.h"
#include "coordination/agreement.h"
#include "device/cpu/reduce.h"

namespace farandole {
namespace {

// Bindings make these from numbers.
Status check_enumerations(const Submission& submission) {
  const auto operation = static_cast<std::size_t>(submission.operation);
  const auto dtype = static_cast<std::size_t>(submission.dtype);
  const auto reduce_op = static_cast<std::size_t>(submission.reduce_op);
  if (operation < kOperations.size() && dtype < kDTypes.size() && reduce_op < kReduceOpNames.size())
    return {};
  return Status::fix_call(
      fmt::format("operation {}, dtype {} and reduce op {}: one of these numbers is in no table",
                  operation, dtype, reduce_op));
}

Status check_membership(const Submission& submission, std::span<const int> ranks, int rank) {
  if (ranks.empty())
    return Status::fix_call(fmt::format(
        "there is no group {}; groups are given to init() on all ranks", submission.group));
  if (!std::binary_search(ranks.begin(), ranks.end(), rank))
    return Status::fix_call(fmt::format(
        "rank {} is not a member of group {} (ranks {}); only members may call its operations",
        rank, submission.group, fmt::join(ranks, ", ")));
  return {};
}

Status check_shape(const Submission& submission) {
  const auto& shape = submission.shape;
  if (shape.size() > kDimensionsMax)
    return Status::fix_call(fmt::format("a tensor has {} dimensions; at most {} are possible",
                                        shape.size(), kDimensionsMax));
  auto bytes = static_cast<std::int64_t>(row_of(submission.dtype).bytes);
  for (const std::int64_t dimension : shape) {
    const bool too_big =
        dimension > 0 && bytes > std::numeric_limits<std::int64_t>::max() / dimension;
    if (dimension < 0 || too_big)
      return Status::fix_call(
          fmt::format("the shape [{}] is not that of a tensor in memory", fmt::join(shape, ", ")));
    bytes *= std::max<std::int64_t>(dimension, 1);
  }
  return {};
}

Status check_memory(const Submission& submission, int rank) {
  if (submission.operation == Operation::kBarrier || element_count(submission) == 0) return {};
  const bool reads = submission.operation != Operation::kBroadcast || submission.root_rank == rank;
  const bool writes = submission.operation != Operation::kAllgather;
  if ((reads && submission.input == nullptr) || (writes && submission.output == nullptr))
    return Status::fix_call(fmt::format("{} `{}` got a null pointer as {}",
                                        row_of(submission.operation).name, submission.name,
                                        reads && submission.input == nullptr ? "input" : "output"));
  return {};
}

}  // namespace

Status check_submission(const Submission& submission, std::span<const int> ranks, int rank) {
  FARANDOLE_TRY(check_enumerations(submission));
  FARANDOLE_TRY(check_membership(submission, ranks, rank));
  FARANDOLE_TRY(check_shape(submission));
  FARANDOLE_TRY(check_memory(submission, rank));
  if (submission.name.size() > kNameBytesMax)
    return Status::fix_call(fmt::format("a name of {} bytes is too long; at most {} are possible",
                                        submission.name.size(), kNameBytesMax));
  if (submission.operation == Operation::kAllreduce)
    FARANDOLE_TRY(check_reduction(submission.dtype, submission.reduce_op));
  if (submission.operation == Operation::kAllgather && submission.shape.empty())
    return Status::fix_call(
        fmt::format("allgather `{}` got a tensor without dimensions; give it one, of length 1",
                    submission.name));
  const bool rooted = submission.operation == Operation::kBroadcast;
  if (rooted && !std::binary_search(ranks.begin(), ranks.end(), submission.root_rank))
    return Status::fix_call(
        fmt::format("broadcast `{}` has root rank {}, which is not one of the group's ranks ({})",
                    submission.name, submission.root_rank, fmt::join(ranks, ", ")));
  return {};
}

Signature signature_of(const Submission& submission) {
  Signature signature;
  signature.name = submission.name;
  signature.operation = submission.operation;
  if (submission.operation == Operation::kAllreduce) signature.reduce_op = submission.reduce_op;
  if (submission.operation == Operation::kBroadcast) signature.root_rank = submission.root_rank;
  const auto rule = row_of(submission.operation).shape_rule;
  if (rule == ShapeRule::kNone) return signature;
  signature.dtype = submission.dtype;
  const auto skipped = rule == ShapeRule::kAllButFirst ? 1 : 0;
  signature.dimensions.assign(submission.shape.begin() + skipped, submission.shape.end());
  return signature;
}

std::int64_t element_count(const Submission& submission) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : submission.shape) count *= dimension;
  return count;
}

std::int64_t row_bytes(const Submission& submission) {
  auto bytes = static_cast<std::int64_t>(row_of(submission.dtype).bytes);
  for (std::size_t d = 1; d < submission.shape.size(); ++d) bytes *= submission.shape[d];
  return bytes;
}

}  // namespace farandole
