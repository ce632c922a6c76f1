// Compares every operation of groups on several hosts with a plain reference, for all dtypes and
// reduce ops, for several shapes of the host parts and networks.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "collective/staging.h"
#include "hosts/hosts_in_test.h"
#include "hosts/notes.h"
#include "hosts/start_step.h"

namespace farandole {
namespace {

struct Shape {
  const char* name;
  HostMembers parts;
};

const std::vector<Shape> kShapes = {
    {"2_2", {{0, 1}, {2, 3}}},
    {"3_1", {{0, 1, 2}, {3}}},
    {"1_1", {{0}, {1}}},
    {"1_1_1", {{0}, {1}, {2}}},
    {"1_1_1_1", {{0}, {1}, {2}, {3}}},
    {"1_2_1_2_1", {{0}, {1, 5}, {2}, {3, 6}, {4}}},
    {"2_2_2", {{0, 1}, {2, 3}, {4, 5}}},
    {"3_3", {{0, 1, 2}, {3, 4, 5}}},
    {"interleaved", {{0, 3, 6}, {1, 4}, {2, 5}}},
};

int members_of(const HostMembers& parts) { return HostParts{.members = parts}.group_members(); }

class HostsConformance : public ::testing::TestWithParam<std::tuple<OperationRow, Shape>> {
 protected:
  Operation operation() const { return std::get<0>(GetParam()).operation; }
  const HostMembers& parts() const { return std::get<1>(GetParam()).parts; }
  int members() const { return members_of(parts()); }

  std::vector<ReduceOp> reduce_ops(DType dtype) const {
    std::vector<ReduceOp> ops = {ReduceOp::kSum};
    if (row_of(operation()).reduces)
      for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct, ReduceOp::kAverageOfPresent, ReduceOp::kAdasum})
        ops.push_back(op);
    std::erase_if(ops, [&](ReduceOp op) { return !is_supported(operation(), dtype, op); });
    return ops;
  }
  void add_call(DType dtype, ReduceOp op, std::int64_t bytes) {
    CallInTest call = {.operation = operation(),
                       .reduction = {.dtype = dtype, .op = op},
                       .row_elements = 1 + random_below(random_, 3)};
    call.hosts = parts();
    call.hierarchical_adasum = hierarchical_adasum_;
    const std::int64_t rows = rounds_for(bytes, call.row_bytes());
    calls_.emplace_back(random_call(random_, call, members(), rows));
  }
  void run_calls(NetworkOptions options) {
    HostsInTest cluster(parts(), options);
    if (hierarchical_adasum_) cluster.use_hierarchical_adasum();
    run_in_random_order(cluster, calls_, static_cast<unsigned>(random_()));
  }

  std::mt19937 random_{7};
  bool hierarchical_adasum_ = false;
  std::vector<PreparedCall> calls_;
};

TEST_P(HostsConformance, every_dtype_and_reduction) {
  for (const DTypeRow& row : kDTypes)
    for (const ReduceOp op : reduce_ops(row.dtype))
      for (const std::int64_t bytes : {0, 1, 100, 3000}) add_call(row.dtype, op, bytes);
  run_calls({});
}

TEST_P(HostsConformance, every_dtype_and_reduction_in_windows) {
  for (const DTypeRow& row : kDTypes)
    for (const ReduceOp op : reduce_ops(row.dtype)) add_call(row.dtype, op, 20'000);
  run_calls({.bytes_per_move = 5000, .wire_bytes = 3000});
}

TEST_P(HostsConformance, sizes_around_the_limit_of_notes) {
  const std::int64_t note_bytes_max = note_data_bytes_max(static_cast<int>(parts().size()));
  for (const std::int64_t bytes : {note_bytes_max - 1, note_bytes_max, note_bytes_max + 1})
    add_call(DType::kUInt8, ReduceOp::kSum, bytes);
  for (const std::int64_t bytes : {note_bytes_max - 4, note_bytes_max, note_bytes_max + 4})
    add_call(DType::kFloat32, ReduceOp::kSum, bytes);
  run_calls({});
}

TEST_P(HostsConformance, several_windows) {
  const auto slot_bytes = static_cast<std::int64_t>(kStagingBytesPerSlot);
  for (const std::int64_t bytes :
       {slot_bytes / 3, slot_bytes + 77, 2 * slot_bytes + 1, std::int64_t{50'000}, slot_bytes})
    add_call(kDTypes[static_cast<std::size_t>(random_below(random_, 11))].dtype, ReduceOp::kSum,
             bytes);
  run_calls({.bytes_per_move = 300'000, .wire_bytes = 500'000});
}

// These reductions are computed from the inputs of all members, not from host sums.
TEST_P(HostsConformance, several_windows_of_all_inputs) {
  const auto slot_bytes = static_cast<std::int64_t>(kStagingBytesPerSlot);
  if (row_of(operation()).reduces) {
    add_call(DType::kInt16, ReduceOp::kAverage, slot_bytes + 2);
    add_call(DType::kUInt8, ReduceOp::kAverageOfPresent, slot_bytes / 2 + 1);
  }
  if (operation() == Operation::kAllreduce)
    for (const std::int64_t bytes : {slot_bytes / 2, slot_bytes + 8})
      add_call(DType::kFloat32, ReduceOp::kAdasum, bytes);
  run_calls({.bytes_per_move = 300'000, .wire_bytes = 500'000});
}

TEST_P(HostsConformance, one_byte_at_a_time) {
  for (const std::int64_t bytes : {100, 17'000, 33'000})
    add_call(DType::kInt16, ReduceOp::kSum, bytes);
  run_calls({.bytes_per_move = 1, .wire_bytes = 50});
}

class HostsHierarchicalAdasum : public HostsConformance {};

TEST_P(HostsHierarchicalAdasum, every_dtype_and_several_windows) {
  hierarchical_adasum_ = true;
  const std::int64_t note_bytes_limit = note_data_bytes_max(static_cast<int>(parts().size()));
  const auto slot_bytes = static_cast<std::int64_t>(kStagingBytesPerSlot);
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64})
    for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{8}, note_bytes_limit,
                                     note_bytes_limit + 8, 3 * note_bytes_limit})
      add_call(dtype, ReduceOp::kAdasum, bytes);
  add_call(DType::kFloat32, ReduceOp::kAdasum, slot_bytes + 8);
  add_call(DType::kFloat32, ReduceOp::kSum, 100);
  run_calls({.bytes_per_move = 300'000, .wire_bytes = 500'000});
}

INSTANTIATE_TEST_SUITE_P(Table, HostsConformance,
                         ::testing::Combine(::testing::ValuesIn(operations_with_steps()),
                                            ::testing::ValuesIn(kShapes)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::get<1>(test.param).name;
                         });

INSTANTIATE_TEST_SUITE_P(Table, HostsHierarchicalAdasum,
                         ::testing::Combine(::testing::Values(row_of(Operation::kAllreduce)),
                                            ::testing::ValuesIn(kShapes)),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name);
                         });

// Runs random sequences of operations on the same slots, with random host parts and networks. The
// parameter is the seed.
class HostsRandomSequences : public ::testing::TestWithParam<unsigned> {
 protected:
  // Divides some members among some hosts. Members of a host need not have consecutive numbers.
  static HostMembers random_parts(std::mt19937& random) {
    const std::int64_t hosts = 2 + random_below(random, 3);
    HostMembers parts(static_cast<std::size_t>(hosts));
    const std::int64_t members = hosts + random_below(random, 6);
    for (int member = 0; member < members; ++member) {
      const std::int64_t host = member < hosts ? member : random_below(random, hosts);
      parts[static_cast<std::size_t>(host)].push_back(member);
    }
    return parts;
  }
  void add_call(const HostMembers& parts) {
    const auto operations = operations_with_steps();
    const Operation operation =
        operations[static_cast<std::size_t>(random_below(random_, 6))].operation;
    const DType dtype = kDTypes[static_cast<std::size_t>(random_below(random_, 11))].dtype;
    const auto op = static_cast<ReduceOp>(random_below(random_, 7));
    if (!is_supported(operation, dtype, op)) return;
    const std::int64_t rows = random_below(random_, std::int64_t{1} << random_below(random_, 18));
    CallInTest call = {.operation = operation,
                       .reduction = {.dtype = dtype, .op = op},
                       .row_elements = random_below(random_, 4)};
    call.hosts = parts;
    calls_.emplace_back(random_call(random_, call, members_of(parts), rows));
  }

  std::mt19937 random_{GetParam()};
  std::vector<PreparedCall> calls_;
};

TEST_P(HostsRandomSequences, in_one_thread) {
  const HostMembers parts = random_parts(random_);
  while (calls_.size() < 25) add_call(parts);
  const auto bytes_per_move = static_cast<std::size_t>(random_below(random_, 3) * 300'000 + 20'000);
  HostsInTest cluster(parts, {.bytes_per_move = bytes_per_move, .wire_bytes = bytes_per_move / 2});
  run_in_random_order(cluster, calls_, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostsRandomSequences, ::testing::Range(1U, 33U));

}  // namespace
}  // namespace farandole
