// Tests sizes just below and above slices and windows, and members that have joined. The
// conformance suite tests dtypes and reductions. The expected values come from one reduce() over
// the whole inputs; device/cpu/reduce_test.cc tests that function.
#include <gtest/gtest.h>

#include <set>
#include <variant>

#include "collective/call_in_test.h"
#include "collective/one_shot_allreduce.h"
#include "collective/two_shot_allreduce.h"

namespace farandole {
namespace {

// Element counts just below, at and just above these sizes: one element per member, a slice, and a
// window.
std::set<std::int64_t> boundary_counts(DType dtype, int members) {
  const auto bytes = static_cast<std::int64_t>(row_of(dtype).bytes);
  const std::int64_t window = kWindow / bytes;
  const std::int64_t slices = 64 / bytes * members;
  return {0,          1,          members - 1, members,    members + 1, slices - 1,     slices,
          slices + 1, window - 1, window,      window + 1, 2 * window,  3 * window + 17};
}

PreparedCall call_of(int members, std::int64_t count, std::vector<bool> joined = {}) {
  const auto seed = static_cast<unsigned>(count);
  return PreparedCall({.operation = Operation::kAllreduce,
                       .rows = std::vector<std::int64_t>(static_cast<std::size_t>(members), count),
                       .joined = std::move(joined),
                       // Each count runs in place for some numbers of members, and out of place for
                       // the other numbers.
                       .in_place = (count + members) % 2 == 0,
                       .seed = seed});
}

class AllreduceMembers : public ::testing::TestWithParam<int> {};

TEST_P(AllreduceMembers, is_correct_for_every_size_in_place_and_out_of_place) {
  std::vector<PreparedCall> calls;
  for (const std::int64_t count : boundary_counts(DType::kFloat32, GetParam()))
    calls.push_back(call_of(GetParam(), count));
  run_in_threads(GetParam(), calls);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AllreduceMembers, ::testing::Range(1, 9));

// Runs many steps in a row on one board, so that they reuse the staging memory. One thread advances
// the members in orders that real threads would rarely produce.
TEST(AllreduceOrder, any_order_of_the_members_gives_the_same_result) {
  for (const int members : {2, 3, 5}) {
    std::vector<PreparedCall> calls;
    for (std::int64_t number = 1; number <= 20; ++number)
      calls.push_back(call_of(members, number % 6 * kWindow / 4 + number));
    run_in_random_order(members, calls, static_cast<unsigned>(members));
  }
}

// Tries every choice of joined members in which at least one member has not joined.
TEST(AllreduceJoined, others_get_sums_and_joined_members_write_nothing) {
  for (const unsigned members : {2U, 3U, 4U}) {
    std::vector<PreparedCall> calls;
    for (unsigned choice = 1; choice + 1 < 1U << members; ++choice) {
      std::vector<bool> joined;
      for (unsigned member = 0; member < members; ++member)
        joined.push_back((choice >> member & 1U) != 0);
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{5}, kWindow / 4 * 3 + 7})
        calls.push_back(call_of(static_cast<int>(members), count, joined));
    }
    run_in_threads(static_cast<int>(members), calls);
    run_in_random_order(static_cast<int>(members), calls, members);
  }
}

// Runs an allreduce of three members. All elements of the first member are 6, all elements of the
// second are 3, and the third has joined. Checks that all elements of the result are equal, and
// returns one of them.
template <std::size_t kCount>
float average(ReduceOp op) {
  GroupInTest group(3);
  std::array<std::vector<float>, 2> memory = {std::vector<float>(kCount, 6),
                                              std::vector<float>(kCount, 3)};
  std::vector<CollectiveStep> steps;
  for (int member = 0; member < 3; ++member) {
    CollectiveCall call = {.operation = Operation::kAllreduce,
                           .dtype = DType::kFloat32,
                           .reduce_op = op,
                           .count = kCount,
                           .joined = member == 2};
    if (!call.joined) {
      call.output = reinterpret_cast<std::byte*>(memory[static_cast<std::size_t>(member)].data());
      call.input = call.output;
    }
    steps.push_back(choose_step(group.group(member), step_identity(1), std::move(call)));
  }
  group.finish_in_random_order(steps, 1);
  EXPECT_EQ(memory[0], std::vector<float>(kCount, memory[0][0]));
  EXPECT_EQ(memory[0], memory[1]);
  return memory[0][0];
}

TEST(AllreduceJoined, average_divides_by_all_or_by_present_members) {
  constexpr std::size_t kElementsForTwoShots = kWindowBytes;
  EXPECT_EQ(average<1>(ReduceOp::kAverage), 3);
  EXPECT_EQ(average<kElementsForTwoShots>(ReduceOp::kAverage), 3);
  EXPECT_EQ(average<1>(ReduceOp::kAverageOfPresent), 4.5F);
  EXPECT_EQ(average<kElementsForTwoShots>(ReduceOp::kAverageOfPresent), 4.5F);
}

// The results of all members. Members for which `in_heap` is true have their tensors in shared
// heaps.
std::vector<Buffer> results_of(ReduceOp op, const std::vector<bool>& in_heap, bool in_place,
                               std::int64_t count) {
  const auto members = static_cast<int>(in_heap.size());
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(double));
  GroupInTest group(members);
  std::vector<std::shared_ptr<std::byte>> memory;  // no other object owns this memory
  std::vector<CollectiveStep> steps;
  std::vector<std::byte*> outputs;
  const auto allocated = [&](int member) {
    const auto size = static_cast<std::size_t>(bytes);
    if (in_heap[static_cast<std::size_t>(member)])
      memory.push_back(group.heap(member).allocate(size).value());
    else
      memory.emplace_back(new std::byte[size], std::default_delete<std::byte[]>());
    return memory.back().get();
  };
  for (int member = 0; member < members; ++member) {
    std::byte* const input = allocated(member);
    std::ranges::copy(random_elements(DType::kFloat64, count, static_cast<unsigned>(member)),
                      input);
    outputs.push_back(in_place ? input : allocated(member));
    steps.push_back(choose_step(group.group(member), step_identity(1),
                                {.operation = Operation::kAllreduce,
                                 .dtype = DType::kFloat64,
                                 .reduce_op = op,
                                 .count = count,
                                 .input = input,
                                 .output = outputs.back()}));
  }
  group.finish_in_random_order(steps, static_cast<unsigned>(count));
  std::vector<Buffer> results;
  for (const std::byte* const output : outputs) results.emplace_back(output, output + bytes);
  return results;
}

// If no output overwrites an input, each of two members may reduce the whole tensor, because it can
// read the other member's input. In a call in place, each member reduces only its slice.
TEST(AllreduceOrder, in_place_in_heaps_equals_out_of_place) {
  for (std::int64_t count = kWindow / 8 + 1; count <= kWindow / 8 * 2; count += 1001) {
    const Buffer expected = results_of(ReduceOp::kSum, {false, false}, false, count).front();
    for (const Buffer& result : results_of(ReduceOp::kSum, {true, true}, true, count))
      EXPECT_TRUE(same_bytes(result, expected)) << count;
  }
}

// Expects the same bits in place and out of place, and for tensors in heaps, in other memory, or in
// both.
void expect_same_bits(std::size_t members, std::int64_t count) {
  SCOPED_TRACE(testing::Message() << members << " members, " << count << " elements");
  const std::vector<bool> none_in_heap(members, false);
  const std::vector<bool> all_in_heap(members, true);
  std::vector<bool> some_in_heap = all_in_heap;
  some_in_heap.back() = false;
  const Buffer expected = results_of(ReduceOp::kAdasum, none_in_heap, false, count).front();
  for (const std::vector<bool>& in_heap : {none_in_heap, some_in_heap, all_in_heap})
    for (const bool in_place : {false, true})
      for (const Buffer& result : results_of(ReduceOp::kAdasum, in_heap, in_place, count))
        EXPECT_TRUE(same_bytes(result, expected));
}

TEST(AllreduceAdasum, has_the_same_bits_on_all_members_and_in_all_memory) {
  for (const std::size_t members : {1U, 2U, 3U, 5U, 8U})
    for (const std::int64_t count : {std::int64_t{3}, kWindow / 8, kWindow / 8 * 5 + 3})
      expect_same_bits(members, count);
}

TEST(AllreduceAdasum, dot_products_of_many_members_fit) {
  constexpr std::size_t kMembers = 40;
  const std::int64_t count = kWindow / 8 * 2;
  const Buffer expected =
      results_of(ReduceOp::kAdasum, std::vector<bool>(kMembers, true), false, count).front();
  for (const Buffer& result :
       results_of(ReduceOp::kAdasum, std::vector<bool>(kMembers, false), true, count))
    EXPECT_TRUE(same_bytes(result, expected));
}

// Expects that a step in which two members have these options is a mismatch and writes no output.
template <class Algorithm>
void expect_mismatch(const AllreduceOptions& options_of_member_0,
                     const AllreduceOptions& options_of_member_1) {
  GroupInTest group(2);
  std::vector<Buffer> buffers(2, Buffer(64, std::byte{7}));
  std::vector<Algorithm> steps;
  for (int member = 0; member < 2; ++member) {
    AllreduceOptions options = member == 0 ? options_of_member_0 : options_of_member_1;
    options.output = buffers[static_cast<std::size_t>(member)].data();
    options.input = options.output;
    steps.emplace_back(group.group(member), step_identity(1), options);
  }
  EXPECT_EQ(steps[0].advance(), Progress::kPending);
  for (const int member : {1, 0})
    EXPECT_EQ(steps[static_cast<std::size_t>(member)].advance(), Progress::kMismatch);
  for (const Buffer& buffer : buffers) EXPECT_TRUE(buffer == Buffer(64, std::byte{7}));
}

template <class Algorithm>
class BothAllreduces : public ::testing::Test {};
using Algorithms = ::testing::Types<OneShotAllreduce, TwoShotAllreduce>;
TYPED_TEST_SUITE(BothAllreduces, Algorithms);

TYPED_TEST(BothAllreduces, different_counts_are_a_mismatch_and_nothing_is_written) {
  expect_mismatch<TypeParam>({.count = 8}, {.count = 9});
  expect_mismatch<TypeParam>({.count = 8}, {.count = 0});
}

TYPED_TEST(BothAllreduces, another_count_of_a_joined_member_or_only_joined_members_are_a_mismatch) {
  expect_mismatch<TypeParam>({.count = 8}, {.count = 9, .joined = true});
  expect_mismatch<TypeParam>({.count = 0}, {.count = 9, .joined = true});
  expect_mismatch<TypeParam>({.count = 8, .joined = true}, {.count = 8, .joined = true});
  expect_mismatch<TypeParam>({.count = 0, .joined = true}, {.count = 0, .joined = true});
}

TEST(AllreduceChoice, one_shot_is_limited_to_its_maximum_size) {
  GroupInTest group(2);
  group.group(0).costs.wait_bytes = 1 << 30;  // so that the cost model allows one shot
  constexpr std::int64_t kBytesMax = OneShotAllreduce::kBytesMax;
  std::vector<std::byte> memory(kBytesMax + 1);
  const auto allreduce_of = [&](std::int64_t bytes) {
    return choose_step(group.group(0), step_identity(1),
                       {.operation = Operation::kAllreduce,
                        .count = bytes,
                        .input = memory.data(),
                        .output = memory.data()});
  };
  EXPECT_TRUE(std::holds_alternative<OneShotAllreduce>(allreduce_of(kBytesMax)));
  EXPECT_TRUE(std::holds_alternative<TwoShotAllreduce>(allreduce_of(kBytesMax + 1)));
}

}  // namespace
}  // namespace farandole
