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
#include "hosts/notes.h"
#include "hosts/reduction.h"

namespace farandole {

namespace {

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(row_of(dtype).bytes); }

std::unique_ptr<HostsReduction> reduction(Group& group, const StepIdentity& identity,
                                          const CollectiveCall& call) {
  const Reduction reduction = {.dtype = call.dtype,
                               .op = call.reduce_op,
                               .prescale = call.prescale,
                               .postscale = call.postscale};
  const bool is_allreduce = call.operation == Operation::kAllreduce;
  const std::int64_t bytes =
      is_allreduce ? call.count * element_bytes(call.dtype) : call.rows * call.row_bytes;
  CHECK(bytes % element_bytes(call.dtype) == 0, "a row consists of whole elements");
  HostsReduction::Options options = {
      .tensor = {.reduction = reduction,
                 .count = bytes / element_bytes(call.dtype),
                 .input = call.input,
                 .output = call.output,
                 .joined = call.joined},
      .parts = is_allreduce ? HostsReduction::equal_parts(group, bytes)
                            : HostsReduction::parts_by_rows(group, call.rows, call.row_bytes),
      .is_allreduce = is_allreduce};
  return std::make_unique<HostsReduction>(group, identity, std::move(options));
}

}  // namespace

std::unique_ptr<StepBetweenHosts> start_step(Group& group, const StepIdentity& identity,
                                             CollectiveCall&& call) {
  switch (call.operation) {
    case Operation::kAllreduce:
    case Operation::kReducescatter:
      return reduction(group, identity, call);
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

bool is_narrow_integer(DType dtype) {
  const DTypeRow& row = row_of(dtype);
  return row.bytes < sizeof(std::int64_t) &&
         (row.dlpack_code == DLPackCode::kInt || row.dlpack_code == DLPackCode::kUInt);
}

Status check_reduction_of(DType dtype, ReduceOp op) {
  if (op == ReduceOp::kAdasum)
    return Status::fix_call(
        "the reduce op adasum is not possible in a group that has members on several hosts; use "
        "sum or average, or a group whose members are on one host");
  const bool is_average = op == ReduceOp::kAverage || op == ReduceOp::kAverageOfPresent;
  if (!is_average || !is_narrow_integer(dtype)) return {};
  return Status::fix_call(
      format_text("the {} of {} values is not possible in a group that has members on several "
                  "hosts, because the sum of one host may not fit into {}; convert the tensor to "
                  "int64 or float32 first, or use sum",
                  name_of(op), row_of(dtype).name, row_of(dtype).name));
}

// Whether the notes and the windows fit into the staging memory. Only the splits of an all-to-all
// become too many in groups of a realistic size.
bool fits(const HostParts& hosts, Operation operation) {
  const bool is_alltoall = operation == Operation::kAlltoall;
  NoteSizes notes = {.payloads = std::vector<std::int64_t>(hosts.members.size(),
                                                           note_data_bytes_max(hosts.hosts()))};
  if (operation == Operation::kAllgather) notes = HostsAllgather::note_sizes(hosts);
  if (is_alltoall) notes = HostsAlltoall::note_sizes(hosts);
  if (!notes.fit()) return false;
  const bool reduces = row_of(operation).reduces;
  const int chunks = reduces || is_alltoall ? hosts.hosts() : 1;
  return WindowLayout::fits(notes.staging_bytes(), hosts, chunks,
                            hosts.hosts() * (reduces ? 2 : 1));
}

}  // namespace

Status supports(const Group& group, Operation operation, DType dtype, ReduceOp reduce_op) {
  if (!group.parts) return {};
  if (!fits(*group.parts, operation))
    return Status::fix_call(
        format_text("the {} of {} members on {} hosts is not possible, because their counts do not "
                    "fit into the "
                    "memory for it; use smaller groups",
                    row_of(operation).name, group.parts->group_members(), group.parts->hosts()));
  return row_of(operation).reduces ? check_reduction_of(dtype, reduce_op) : Status();
}

}  // namespace farandole
