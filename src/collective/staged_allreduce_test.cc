// What is expected comes from one reduce() over the whole inputs, which has its own tests.
#include "collective/staged_allreduce.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "collective/group_in_test.h"
#include "device/cpu/half.h"
#include "device/cpu/reduce.h"

namespace farandole {
namespace {

// Floats between −2 and 2, since the bits of a NaN may depend on where vector code ends; else
// noise.
Buffer random_elements(DType dtype, std::int64_t count, unsigned seed) {
  const auto elements = static_cast<std::size_t>(count);
  Buffer buffer = random_bytes(elements * row_of(dtype).bytes, seed);
  const auto convert = [&]<class Format>(auto from_float) {
    for (std::size_t index = 0; index < elements; ++index) {
      const auto noise = std::to_integer<int>(buffer[index * sizeof(Format)]);
      const auto value = static_cast<float>(noise - 128 + static_cast<int>(index % 100)) / 114;
      const Format element = from_float(value);
      std::memcpy(&buffer[index * sizeof(Format)], &element, sizeof(element));
    }
  };
  if (dtype == DType::kFloat16) convert.operator()<Float16>(to_float16);
  if (dtype == DType::kBFloat16) convert.operator()<BFloat16>(to_bfloat16);
  if (dtype == DType::kFloat32) convert.operator()<float>([](float value) { return value; });
  if (dtype == DType::kFloat64) convert.operator()<double>([](float value) { return value / 3.0; });
  return buffer;
}

Buffer expected_result(DType dtype, ReduceOp op, const std::vector<Buffer>& inputs) {
  Buffer result(inputs[0].size());
  std::vector<const std::byte*> pointers;
  for (const Buffer& input : inputs) pointers.push_back(input.data());
  const std::array outputs = {result.data()};
  reduce({.dtype = dtype, .op = op, .divisor = static_cast<int>(inputs.size())}, pointers, outputs,
         static_cast<std::int64_t>(result.size() / row_of(dtype).bytes));
  return result;
}

// Around the borders of members, slices and windows.
std::set<std::int64_t> interesting_counts(DType dtype, int members) {
  const auto bytes = static_cast<std::int64_t>(row_of(dtype).bytes);
  const std::int64_t window = static_cast<std::int64_t>(kWindowBytes) / bytes;
  const std::int64_t slices = 64 / bytes * members;
  return {0,          1,          members - 1, members,    members + 1, slices - 1,     slices,
          slices + 1, window - 1, window,      window + 1, 2 * window,  3 * window + 17};
}

struct Case {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int64_t count = 0;
  bool in_place = false;
  unsigned seed = 0;

  Buffer input_of(int member) const {
    return random_elements(dtype, count, seed * 64 + static_cast<unsigned>(member));
  }
  Buffer expected(int members) const {
    std::vector<Buffer> inputs;
    for (int member = 0; member < members; ++member) inputs.push_back(input_of(member));
    return expected_result(dtype, op, inputs);
  }
  CollectiveStep step(const Group& group, std::uint32_t sequence, Buffer& input,
                      Buffer& output) const {
    return StagedAllreduce(group, step_number(sequence),
                           {.reduction = {.dtype = dtype, .op = op, .divisor = group.members()},
                            .count = count,
                            .input = input.data(),
                            .output = in_place ? input.data() : output.data()});
  }
};

// All cases one after another on the same boards, every member in its thread.
void run_in_threads(int members, const std::vector<Case>& cases) {
  GroupInTest group(members);
  std::vector<Buffer> expected;
  for (const Case& one : cases) expected.push_back(one.expected(members));
  group.in_threads([&](int member) {
    for (std::uint32_t index = 0; index < cases.size(); ++index) {
      const Case& one = cases[index];
      const Buffer original = one.input_of(member);
      Buffer input = original;
      Buffer output(input.size());
      CollectiveStep step = one.step(group.group(member), index + 1, input, output);
      ASSERT_EQ(group.finish(member, step), Progress::kDone);
      EXPECT_TRUE(same(one.in_place ? input : output, expected[index]))
          << "member " << member << " of " << members << ", " << one.count << " elements of "
          << row_of(one.dtype).name << (one.in_place ? ", in place" : "");
      EXPECT_TRUE(one.in_place || same(input, original)) << "the input was written";
    }
  });
}

class AllreduceMembers : public ::testing::TestWithParam<int> {};

TEST_P(AllreduceMembers, every_size_in_place_and_apart) {
  std::vector<Case> cases;
  for (const std::int64_t count : interesting_counts(DType::kFloat32, GetParam())) {
    const auto seed = static_cast<unsigned>(cases.size());
    // Every count in both ways, by other numbers of members.
    const bool in_place = (seed + static_cast<unsigned>(GetParam())) % 2 == 0;
    cases.push_back({.count = count, .in_place = in_place, .seed = seed});
  }
  run_in_threads(GetParam(), cases);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AllreduceMembers, ::testing::Range(1, 9));

class AllreduceTypes : public ::testing::TestWithParam<std::tuple<DTypeRow, ReduceOp>> {};

TEST_P(AllreduceTypes, one_window_and_more) {
  constexpr int kMembers = 3;
  const auto& [row, op] = GetParam();
  if (!check_reduction(row.dtype, op).ok()) return;
  std::vector<Case> cases;
  const std::int64_t window = static_cast<std::int64_t>(kWindowBytes / row.bytes);
  for (const std::int64_t count : {std::int64_t{5}, window + 3}) {
    const auto seed = static_cast<unsigned>(cases.size());
    cases.push_back({row.dtype, op, count, seed % 2 == 0, seed});
  }
  run_in_threads(kMembers, cases);
}

INSTANTIATE_TEST_SUITE_P(All, AllreduceTypes,
                         ::testing::Combine(::testing::ValuesIn(kDTypes),
                                            ::testing::Values(ReduceOp::kSum, ReduceOp::kAverage,
                                                              ReduceOp::kMin, ReduceOp::kMax,
                                                              ReduceOp::kProduct)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

// Many steps in a row on one board, so that staging memory is used again and again, in orders of
// which threads would show only a few.
TEST(AllreduceOrder, no_order_of_the_members_spoils_the_result) {
  constexpr std::int64_t kWindow = static_cast<std::int64_t>(kWindowBytes) / 8;
  for (const int members : {2, 3, 5}) {
    GroupInTest group(members);
    for (std::uint32_t sequence = 1; sequence <= 20; ++sequence) {
      const Case one = {.dtype = DType::kFloat64,
                        .count = static_cast<std::int64_t>(sequence % 6) * kWindow + sequence,
                        .in_place = sequence % 2 == 1,
                        .seed = sequence};
      std::vector<Buffer> inputs;
      for (int member = 0; member < members; ++member) inputs.push_back(one.input_of(member));
      const Buffer expected = expected_result(one.dtype, one.op, inputs);
      std::vector<Buffer> outputs(inputs.size(), Buffer(inputs[0].size()));
      std::vector<CollectiveStep> steps;
      for (int member = 0; member < members; ++member)
        steps.push_back(one.step(group.group(member), sequence,
                                 inputs[static_cast<std::size_t>(member)],
                                 outputs[static_cast<std::size_t>(member)]));
      group.finish_in_random_order(steps, sequence);
      ASSERT_FALSE(::testing::Test::HasFailure());
      for (const Buffer& result : one.in_place ? inputs : outputs)
        ASSERT_TRUE(same(result, expected)) << members << " members, step " << sequence;
    }
  }
}

TEST(Allreduce, other_counts_are_a_mismatch_for_all_and_nothing_is_written) {
  GroupInTest group(2);
  std::vector<Buffer> buffers(2, Buffer(64, std::byte{7}));
  std::vector<StagedAllreduce> steps;
  for (int member = 0; member < 2; ++member) {
    Buffer& buffer = buffers[static_cast<std::size_t>(member)];
    steps.emplace_back(group.group(member), step_number(1),
                       StagedAllreduce::Options{
                           .count = 8 + member, .input = buffer.data(), .output = buffer.data()});
  }
  EXPECT_EQ(steps[0].advance(), Progress::kMoved);
  EXPECT_EQ(steps[1].advance(), Progress::kMoved);
  for (StagedAllreduce& step : steps) EXPECT_EQ(step.advance(), Progress::kMismatch);
  for (const Buffer& buffer : buffers) EXPECT_TRUE(buffer == Buffer(64, std::byte{7}));
}

}  // namespace
}  // namespace farandole
