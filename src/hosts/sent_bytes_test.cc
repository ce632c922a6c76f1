// Tests how many bytes the algorithms send; conformance_test.cc tests their results.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "hosts/hosts_in_test.h"
#include "hosts/streams.h"

namespace farandole {
namespace {

CallInTest call_of(const HostMembers& parts, Operation operation, std::int64_t elements) {
  CallInTest call = {.operation = operation, .reduction = {.dtype = DType::kFloat32}};
  call.hosts = parts;
  call.rows.assign(static_cast<std::size_t>(HostParts{.members = parts}.group_members()), elements);
  return call;
}

std::vector<std::uint64_t> bytes_sent(const HostMembers& parts, const CallInTest& call) {
  HostsInTest cluster(parts);
  if (call.hierarchical_adasum) cluster.use_hierarchical_adasum();
  run_in_random_order(cluster, {PreparedCall(call)}, 5);
  EXPECT_EQ(cluster.network().entries_sent(), parts.size());
  std::vector<std::uint64_t> sent_by_host;
  for (int host = 0; host < cluster.hosts(); ++host)
    sent_by_host.push_back(cluster.network().bytes_sent(host));
  return sent_by_host;
}

TEST(HostsReduction, an_allreduce_sends_the_lower_bound) {
  const HostMembers parts = {{0, 3}, {1, 4}, {2, 5}};
  const std::int64_t elements = 3 * 16 * 10'000;
  const auto bytes = static_cast<std::uint64_t>(4 * elements);
  EXPECT_EQ(bytes_sent(parts, call_of(parts, Operation::kAllreduce, elements)),
            std::vector<std::uint64_t>(3, 2 * bytes * 2 / 3));
}

TEST(HostsReduction, a_reduce_scatter_sends_each_host_its_rows) {
  const HostMembers parts = {{0, 3}, {1, 4}, {2, 5}};
  const std::int64_t elements = 6 * 10'000;
  const auto bytes = static_cast<std::uint64_t>(4 * elements);
  EXPECT_EQ(bytes_sent(parts, call_of(parts, Operation::kReducescatter, elements)),
            std::vector<std::uint64_t>(3, bytes * 2 / 3));
}

TEST(HostsReduction, small_tensors_travel_in_the_notes) {
  const HostMembers parts = {{0, 1, 2}, {3}};
  for (const Operation operation : {Operation::kAllreduce, Operation::kReducescatter})
    EXPECT_EQ(bytes_sent(parts, call_of(parts, operation, note_data_bytes_max(2) / 4)),
              std::vector<std::uint64_t>(2, 0));
}

// All members of host 1 have called join(). So this host sends results, but no host sum.
TEST(HostsReduction, a_host_without_data_sends_no_host_sum) {
  const HostMembers parts = {{0, 1}, {2, 3}};
  CallInTest call = call_of(parts, Operation::kAllreduce, 32 * 1000);
  call.joined = {false, false, true, true};
  EXPECT_EQ(bytes_sent(parts, call), (std::vector<std::uint64_t>{4 * 32 * 1000, 4 * 16 * 1000}));
}

TEST(HostsAdasum, a_hierarchical_one_sends_the_averages_of_hosts_twice) {
  const HostMembers parts = {{0, 3}, {1, 4}, {2, 5}};
  CallInTest call = call_of(parts, Operation::kAllreduce, 16 * 10'000);
  call.reduction.op = ReduceOp::kAdasum;
  const std::uint64_t bytes = 4 * 16 * 10'000;
  EXPECT_EQ(bytes_sent(parts, call), std::vector<std::uint64_t>(3, 2 * 2 * 2 * bytes));
  call.hierarchical_adasum = true;
  EXPECT_EQ(bytes_sent(parts, call), std::vector<std::uint64_t>(3, 2 * 2 * bytes));
}

// The root's host sends the tensor once, even to many hosts. Each of the three other hosts forwards
// its third of the tensor to two hosts.
TEST(HostsBroadcast, no_host_sends_the_tensor_more_than_once) {
  const HostMembers parts = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  CallInTest call = call_of(parts, Operation::kBroadcast, 3 * 16 * 10'000);
  call.root = 6;
  EXPECT_EQ(bytes_sent(parts, call),
            (std::vector<std::uint64_t>{4 * 320'000, 4 * 320'000, 4 * 480'000, 4 * 320'000}));
}

// If a host waited for a whole slice before it forwards the slice, its links would often be idle.
TEST(HostsBroadcast, a_slice_is_forwarded_while_the_rest_of_it_comes) {
  const HostMembers parts = {{0}, {1}, {2}};
  const std::int64_t bytes = 2 * WindowLayout::kChunkBytesMax;
  CallInTest call = call_of(parts, Operation::kBroadcast, bytes / 4);
  call.root = 0;
  HostsInTest cluster(parts, {.bytes_per_move = 100'000});
  const std::vector<PreparedCall> calls{PreparedCall(call)};
  HostsRun run(cluster, calls);
  std::mt19937 random(1);
  while (cluster.network().bytes_sent(1) == 0 && !run.is_over()) {
    for (int member = 0; member < 3; ++member) run.advance_member(member);
    cluster.network().move(random);
  }
  const std::uint64_t received = cluster.network().lane(1, 0)->bytes_received(0);
  EXPECT_GE(received, cluster.network().bytes_sent(1));
  EXPECT_LT(received, static_cast<std::uint64_t>(bytes) / 4);
  EXPECT_GT(cluster.network().bytes_sent(1), 0U);
}

}  // namespace
}  // namespace farandole
