#include "hosts/start_step.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "hosts/allgather.h"
#include "hosts/alltoall.h"
#include "hosts/barrier.h"
#include "hosts/broadcast.h"
#include "hosts/gathered_reduction.h"
#include "hosts/hierarchical_adasum.h"
#include "hosts/notes.h"
#include "hosts/reduction.h"

namespace farandole {

namespace {

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(row_of(dtype).bytes); }

bool is_narrow_integer(DType dtype) {
  const DTypeRow& row = row_of(dtype);
  return row.bytes < sizeof(std::int64_t) &&
         (row.dlpack_code == DLPackCode::kInt || row.dlpack_code == DLPackCode::kUInt);
}

// Whether the result must be computed from the inputs of all members instead of the host sums.
bool needs_all_inputs(DType dtype, ReduceOp op) {
  const bool is_average = op == ReduceOp::kAverage || op == ReduceOp::kAverageOfPresent;
  return op == ReduceOp::kAdasum || (is_average && is_narrow_integer(dtype));
}

AllreduceOptions allreduce_options(const CollectiveCall& call, std::int64_t bytes) {
  CHECK(bytes % element_bytes(call.dtype) == 0, "a row consists of whole elements");
  return {.reduction = {.dtype = call.dtype,
                        .op = call.reduce_op,
                        .prescale = call.prescale,
                        .postscale = call.postscale},
          .count = bytes / element_bytes(call.dtype),
          .input = call.input,
          .output = call.output,
          .joined = call.joined};
}

std::unique_ptr<StepBetweenHosts> allreduce(Group& group, const StepIdentity& identity,
                                            const CollectiveCall& call) {
  const std::int64_t bytes = call.count * element_bytes(call.dtype);
  if (call.reduce_op == ReduceOp::kAdasum && group.parts->hierarchical_adasum)
    return std::make_unique<HierarchicalAdasum>(group, identity, allreduce_options(call, bytes));
  if (needs_all_inputs(call.dtype, call.reduce_op))
    return std::make_unique<GatheredReduction>(
        group, identity,
        GatheredReduction::Options{.tensor = allreduce_options(call, bytes),
                                   .output_range = {0, bytes}});
  return std::make_unique<HostsReduction>(
      group, identity,
      HostsReduction::Options{.tensor = allreduce_options(call, bytes),
                              .parts = HostsReduction::equal_parts(group, bytes)});
}

std::unique_ptr<StepBetweenHosts> reducescatter(Group& group, const StepIdentity& identity,
                                                const CollectiveCall& call) {
  const AllreduceOptions tensor = allreduce_options(call, call.rows * call.row_bytes);
  if (!needs_all_inputs(call.dtype, call.reduce_op))
    return std::make_unique<HostsReduction>(
        group, identity,
        HostsReduction::Options{
            .tensor = tensor,
            .parts = HostsReduction::parts_by_rows(group, call.rows, call.row_bytes),
            .is_allreduce = false});
  const HostParts& parts = *group.parts;
  const int member =
      parts.members[static_cast<std::size_t>(parts.host)][static_cast<std::size_t>(group.member)];
  const std::int64_t first_row = first_scattered_row(call.rows, parts.group_members(), member);
  const std::int64_t rows = scattered_rows(call.rows, parts.group_members(), member);
  return std::make_unique<GatheredReduction>(
      group, identity,
      GatheredReduction::Options{
          .tensor = tensor,
          .output_range = {first_row * call.row_bytes, (first_row + rows) * call.row_bytes}});
}

}  // namespace

std::unique_ptr<StepBetweenHosts> start_step(Group& group, const StepIdentity& identity,
                                             CollectiveCall&& call) {
  switch (call.operation) {
    case Operation::kAllreduce:
      return allreduce(group, identity, call);
    case Operation::kReducescatter:
      return reducescatter(group, identity, call);
    case Operation::kBroadcast:
      return std::make_unique<HostsBroadcast>(
          group, identity,
          Broadcast::Options{.root = call.root,
                             .bytes = call.count * element_bytes(call.dtype),
                             .input = call.input,
                             .output = call.output});
    case Operation::kAllgather:
      return std::make_unique<HostsAllgather>(
          group, identity,
          Allgather::Options{.input = call.input,
                             .rows = call.rows,
                             .row_bytes = call.row_bytes,
                             .allocate = std::move(call.allocate)});
    case Operation::kAlltoall:
      return std::make_unique<HostsAlltoall>(
          group, identity,
          Alltoall::Options{.input = call.input,
                            .rows = call.rows,
                            .row_bytes = call.row_bytes,
                            .splits = std::move(call.splits),
                            .allocate = std::move(call.allocate)});
    case Operation::kBarrier:
      return std::make_unique<HostsBarrier>(group, identity);
    case Operation::kJoin:
    case Operation::kSend:
    case Operation::kReceive:
      break;
  }
  CHECK(false, "joins and messages are not steps, and every other operation has an algorithm");
  return nullptr;
}

namespace {

// Whether the notes and the windows fit into the staging memory. In practice, only the splits of an
// all-to-all can be too large.
bool fits_into_staging(const HostParts& parts, Operation operation) {
  const bool is_alltoall = operation == Operation::kAlltoall;
  NoteSizes notes = {.payload_bytes = std::vector<std::int64_t>(
                         parts.members.size(), note_data_bytes_max(parts.hosts()))};
  if (operation == Operation::kAllgather) notes = HostsAllgather::note_sizes(parts);
  if (is_alltoall) notes = HostsAlltoall::note_sizes(parts);
  if (!notes.fit_into_staging()) return false;
  if (operation == Operation::kBroadcast)
    return WindowLayout::fits(notes.staging_bytes(), parts, HostsBroadcast::chunks_in_window(parts),
                              0);
  const bool reduces = row_of(operation).reduces;
  const int chunks = reduces || is_alltoall ? parts.hosts() : 1;
  return WindowLayout::fits(notes.staging_bytes(), parts, chunks,
                            parts.hosts() * (reduces ? 2 : 1));
}

}  // namespace

Status supports(const Group& group, Operation operation) {
  if (!group.parts || fits_into_staging(*group.parts, operation)) return {};
  return Status::fix_call(
      format_text("the {} of {} members on {} hosts is not possible, because their counts do not "
                  "fit into the "
                  "memory for it; use smaller groups",
                  row_of(operation).name, group.parts->group_members(), group.parts->hosts()));
}

}  // namespace farandole
