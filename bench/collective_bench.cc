// Measures src/collective alone, from choose_step() to the last advance(). The ranks wait in the
// same way as the engine, but they run each call without an agreement.
#include <cstdlib>
#include <span>

#include "measure.h"
#include "ranks.h"

namespace farandole::bench {
namespace {

Operation operation_of(const std::string& name) {
  for (const OperationRow& row : kOperations)
    if (row.name == name) return row.operation;
  std::fprintf(stderr, "not a collective operation: %s\n", name.c_str());
  std::exit(2);
}

CollectiveCall call_of(const Shape& shape, const BenchOptions& options, const std::byte* input,
                       std::byte* output) {
  const auto bytes = static_cast<std::int64_t>(shape.element_bytes);
  CollectiveCall call = {.operation = operation_of(shape.operation),
                         .dtype = options.dtype,
                         .reduce_op = options.reduce_op,
                         .count = static_cast<std::int64_t>(shape.bytes) / bytes,
                         .rows = static_cast<std::int64_t>(shape.input_bytes()) / bytes,
                         .row_bytes = bytes,
                         .input = input,
                         .output = output};
  if (call.operation == Operation::kAlltoall)
    call.splits.assign(static_cast<std::size_t>(shape.ranks), call.rows / shape.ranks);
  if (row_of(call.operation).output_rule == OutputRule::kEngineMemory)
    call.allocate = [output](std::span<const std::int64_t>) { return output; };
  if (call.operation == Operation::kBroadcast && shape.rank != 0) call.input = nullptr;
  return call;
}

int run(int count, char** words) {
  BenchOptions options = parse_options(count, words, {.pin = true, .library = "farandole"});
  options.in_place |= options.operation == "broadcast";
  Ranks ranks(options.ranks);
  const auto shared_results = Segment::create("bench-shared", sizeof(SharedResults)).value();
  const bool succeeded = run_in_processes(options.ranks, [&](int rank) {
    Member member = ranks.member(rank);
    const BenchRank bench_rank = {rank, options.ranks,
                                  reinterpret_cast<SharedResults*>(shared_results->data())};
    const Call call = [&](const Shape& shape, const std::byte* input, std::byte* output) {
      member.run(call_of(shape, options, input, output));
    };
    const Allocate from_heap = [&](std::size_t bytes) { return member.allocate(bytes); };
    return measure(options, bench_rank, call,
                   options.heap ? from_heap : Allocate(allocate_ordinary));
  });
  return succeeded ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** words) { return farandole::bench::run(count, words); }
