#include "submission/submission_check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/format.h"
#include "base/try.h"
#include "collective/two_shot_allreduce.h"
#include "coordination/agreement.h"
#include "device/cpu/reduce.h"

namespace farandole {
namespace {

// The bindings convert plain numbers to these enumerations, so a value may be unknown.
Status check_enumerations(const Submission& submission) {
  const auto operation = static_cast<std::size_t>(submission.operation);
  const auto dtype = static_cast<std::size_t>(submission.dtype);
  const auto reduce_op = static_cast<std::size_t>(submission.reduce_op);
  if (operation < kOperationRows.size() && dtype < kDTypes.size() &&
      reduce_op < kReduceOpNames.size() && find_row(submission.device) != nullptr)
    return {};
  return Status::fix_call(format_text(
      "operation {}, dtype {}, device {} and reduce op {}: one of these numbers is unknown; do "
      "all parts of Farandole have the same version?",
      operation, dtype, static_cast<int>(submission.device), reduce_op));
}

Status check_membership(const Submission& submission, std::span<const int> ranks, int rank) {
  if (!std::binary_search(ranks.begin(), ranks.end(), rank))
    return Status::fix_call(format_text(
        "it is not a member of group {} (ranks {}); only members may call its operations",
        submission.group, join_text(ranks, ", ")));
  return {};
}

Status check_message(const Submission& submission, std::span<const int> ranks, int rank) {
  if (!row_of(submission.operation).is_message) return {};
  const bool from_any_rank = submission.operation == Operation::kReceive &&
                             submission.peer == kAnyRank && ranks.size() > 1;
  if (!from_any_rank &&
      (submission.peer == rank || !std::ranges::binary_search(ranks, submission.peer)))
    return Status::fix_call(
        format_text("{} names rank {} as the other rank; name another rank of the group ({})",
                    call_title(submission), submission.peer, join_text(ranks, ", ")));
  if (submission.channel.size() <= kChannelBytesMax) return {};
  return Status::fix_call(format_text("{} has a channel of {} bytes; at most {} are possible",
                                      call_title(submission), submission.channel.size(),
                                      kChannelBytesMax));
}

Status check_shape(const Submission& submission) {
  const auto& shape = submission.shape;
  if (shape.size() > kDimensionsMax)
    return Status::fix_call(format_text("{} has {} dimensions; at most {} are possible: reshape it",
                                        call_title(submission), shape.size(), kDimensionsMax));
  if (byte_count(submission.dtype, shape)) return {};
  return Status::fix_call(format_text(
      "{} has the shape [{}], which no tensor has: each dimension must be 0 or more, and "
      "the whole tensor smaller than 2^62 bytes",
      call_title(submission), join_text(shape, ", ")));
}

Status check_memory(const Submission& submission, std::span<const int> ranks, int rank) {
  const OperationRow& row = row_of(submission.operation);
  if (row.shape_rule == ShapeRule::kNone || element_count(submission) == 0) return {};
  const bool reads =
      (!row.rooted || submission.root_rank == rank) && submission.operation != Operation::kReceive;
  bool writes =
      row.output_rule == OutputRule::kCallerMemory && submission.operation != Operation::kSend;
  if (submission.operation == Operation::kReducescatter) {
    const auto members = static_cast<int>(ranks.size());
    const auto member = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    writes = scattered_rows(submission.shape.front(), members, member) > 0;
  }
  const bool input_is_missing = reads && submission.input == nullptr;
  if (input_is_missing || (writes && submission.output == nullptr))
    return Status::fix_call(
        format_text("{} got a null pointer as {}; give the address of its memory",
                    call_title(submission), input_is_missing ? "input" : "output"));
  return {};
}

// These operations divide the first dimension among the members, or concatenate the members' rows
// along it. So their tensors need a first dimension.
Status check_has_rows(const Submission& submission) {
  const bool needs_rows = submission.operation == Operation::kAllgather ||
                          submission.operation == Operation::kAlltoall ||
                          submission.operation == Operation::kReducescatter;
  if (!needs_rows || !submission.shape.empty()) return {};
  return Status::fix_call(
      format_text("{} got a tensor without dimensions; give it one, of length 1 (`reshape(1)`)",
                  call_title(submission)));
}

Status check_splits(const Submission& submission, std::size_t members) {
  const auto& splits = submission.splits;
  if (!row_of(submission.operation).has_splits) return {};
  const std::int64_t rows = submission.shape.front();
  if (splits.empty()) {
    if (rows % static_cast<std::int64_t>(members) == 0) return {};
    return Status::fix_call(
        format_text("{} got {} rows, which {} members cannot share equally; give it splits, the "
                    "number of rows for each member",
                    call_title(submission), rows, members));
  }
  if (splits.size() != members)
    return Status::fix_call(format_text("{} got {} splits ({}) in a group of {}; give one for each",
                                        call_title(submission), splits.size(),
                                        join_text(splits, ", "), members));
  std::int64_t rows_left = rows;
  for (const std::int64_t split : splits) {
    if (split < 0 || split > rows_left)
      return Status::fix_call(
          format_text("{} got the splits ({}) for {} rows; each must be 0 or more, and their sum "
                      "at most the number of rows",
                      call_title(submission), join_text(splits, ", "), rows));
    rows_left -= split;
  }
  return {};
}

Status check_adasum(const Submission& submission, std::size_t members) {
  if (submission.reduce_op != ReduceOp::kAdasum) return {};
  if (submission.operation != Operation::kAllreduce)
    return Status::fix_call(format_text(
        "{} got the reduce op adasum, which only allreduce has; call that, or use sum or average",
        call_title(submission)));
  if (members <= TwoShotAllreduce::kAdasumMembersMax) return {};
  return Status::fix_call(format_text(
      "{} got the reduce op adasum in a group of {}; it is possible among {} members at "
      "most: use sum or average, or smaller groups",
      call_title(submission), members, TwoShotAllreduce::kAdasumMembersMax));
}

Status check_reduction_of(const Submission& submission, std::size_t members) {
  if (!row_of(submission.operation).reduces) return {};
  FARANDOLE_TRY(check_adasum(submission, members));
  if (const Status status = check_reduction(submission.dtype, submission.reduce_op); !status.ok())
    return Status::fix_call(format_text("{}: {}", call_title(submission), status.message()));
  if (std::isfinite(submission.prescale) && std::isfinite(submission.postscale)) return {};
  return Status::fix_call(
      format_text("{} got the prescale factor {} and the postscale factor {}; both must be finite",
                  call_title(submission), submission.prescale, submission.postscale));
}

}  // namespace

std::string call_title(const Submission& submission) {
  const std::string_view operation = row_of(submission.operation).name;
  if (submission.name.empty()) return std::string(operation);
  return format_text("{} `{}`", operation, shortened(submission.name, kNameShownBytesMax));
}

Status cannot_finish_error(const Submission& submission, const Status& cause) {
  return Status::rebuild_group(
      format_text("{} cannot finish: {}", call_title(submission), cause.message()));
}

Status check_submission(const Submission& submission, std::span<const int> ranks, int rank) {
  FARANDOLE_TRY(check_enumerations(submission));
  FARANDOLE_TRY(check_membership(submission, ranks, rank));
  FARANDOLE_TRY(check_message(submission, ranks, rank));
  FARANDOLE_TRY(check_shape(submission));
  if (submission.name.size() > kNameBytesMax)
    return Status::fix_call(
        format_text("the name `{}` has {} bytes; at most {} are possible: give it a shorter one",
                    shortened(submission.name, 80), submission.name.size(), kNameBytesMax));
  if (submission.name.starts_with(kReservedPrefix) ||
      submission.name.find(kAutomaticNameInfix) != std::string::npos)
    return Status::fix_call(format_text(
        "{} has a reserved name: the names of a program must not begin with `{}` or contain `{}`",
        call_title(submission), kReservedPrefix, kAutomaticNameInfix));
  return {};
}

Status call_error_of(const Submission& submission, std::span<const int> ranks, int rank) {
  if (!submission.call_error.empty()) return Status::fix_call(submission.call_error);
  FARANDOLE_TRY(check_has_rows(submission));
  FARANDOLE_TRY(check_memory(submission, ranks, rank));
  FARANDOLE_TRY(check_reduction_of(submission, ranks.size()));
  FARANDOLE_TRY(check_splits(submission, ranks.size()));
  if (row_of(submission.operation).rooted &&
      !std::ranges::binary_search(ranks, submission.root_rank))
    return Status::fix_call(
        format_text("{} has root rank {}, which is not one of the group's ranks ({})",
                    call_title(submission), submission.root_rank, join_text(ranks, ", ")));
  return {};
}

Signature signature_of(const Submission& submission) {
  Signature signature;
  signature.name = submission.name;
  signature.operation = submission.operation;
  signature.call_error = shortened(submission.call_error, kCallErrorBytesMax);
  if (signature.has_call_error()) return signature;
  const OperationRow& row = row_of(submission.operation);
  if (row.reduces) {
    signature.reduce_op = submission.reduce_op;
    signature.prescale = submission.prescale;
    signature.postscale = submission.postscale;
  }
  if (row.rooted) signature.root_rank = submission.root_rank;
  const auto rule = row.shape_rule;
  if (rule == ShapeRule::kNone) return signature;
  signature.dtype = submission.dtype;
  signature.device = submission.device;
  const auto dimensions_skipped = rule == ShapeRule::kAllButFirst ? 1 : 0;
  signature.dimensions.assign(submission.shape.begin() + dimensions_skipped,
                              submission.shape.end());
  return signature;
}

bool is_signature_of(const Signature& signature, const Submission& submission) {
  const OperationRow& row = row_of(submission.operation);
  if (signature.operation != submission.operation || signature.name != submission.name ||
      signature.has_call_error() || !submission.call_error.empty())
    return false;
  if (row.rooted && signature.root_rank != submission.root_rank) return false;
  if (row.reduces && (signature.reduce_op != submission.reduce_op ||
                      !have_same_bits(signature.prescale, submission.prescale) ||
                      !have_same_bits(signature.postscale, submission.postscale)))
    return false;
  if (row.shape_rule == ShapeRule::kNone) return true;
  std::span<const std::int64_t> dimensions = submission.shape;
  if (row.shape_rule == ShapeRule::kAllButFirst) dimensions = dimensions.subspan(1);
  return signature.dtype == submission.dtype && signature.device == submission.device &&
         std::ranges::equal(signature.dimensions, dimensions);
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
