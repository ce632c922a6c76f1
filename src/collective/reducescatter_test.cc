// Tests sizes just below and above a piece, and rows that do not divide evenly. The conformance
// suite tests dtypes and reductions.
#include "collective/reducescatter.h"

#include <gtest/gtest.h>

#include "collective/call_in_test.h"

namespace farandole {
namespace {

class ReducescatterMembers : public ::testing::TestWithParam<int> {
 protected:
  void add(std::int64_t rows, std::int64_t row_elements) {
    std::mt19937 random(static_cast<unsigned>(calls_.size()));
    calls_.emplace_back(random_call(random,
                                    {.operation = Operation::kReducescatter,
                                     .reduction = {.dtype = DType::kInt16},
                                     .row_elements = row_elements},
                                    GetParam(), rows));
  }
  std::vector<PreparedCall> calls_;
};

TEST_P(ReducescatterMembers, is_correct_for_shares_around_the_size_of_a_piece) {
  const std::int64_t members = GetParam();
  const std::int64_t piece = kWindow / members / 64 * 64 / 2;  // elements
  for (const std::int64_t share : {piece - 1, piece, piece + 1, 5 * piece}) {
    add(share * members, 1);
    add(share * members - 1, 1);  // the last member has one row less, and perhaps one round less
    add(share * members + 1, 1);  // the first member has one row more, and perhaps one round more
  }
  run_in_threads(GetParam(), calls_);
  run_in_random_order(GetParam(), calls_, 1);
}

// A piece may end in the middle of a row, at the end of a cache line.
TEST_P(ReducescatterMembers, is_correct_for_rows_larger_than_a_piece) {
  for (const std::int64_t rows : {1, GetParam() - 1, GetParam() + 1}) add(rows, kWindow / 3);
  run_in_threads(GetParam(), calls_);
}

TEST_P(ReducescatterMembers, is_correct_if_some_or_all_members_get_no_rows) {
  for (const std::int64_t rows : {0, 1, GetParam() / 2}) {
    add(rows, 3);
    add(rows, 0);
  }
  run_in_threads(GetParam(), calls_);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ReducescatterMembers, ::testing::Values(1, 2, 3, 5, 8));

TEST(Reducescatter, different_rows_are_a_mismatch_and_nothing_is_written) {
  GroupInTest group(2);
  const Buffer input(64, std::byte{1});
  std::vector<Buffer> outputs(2, Buffer(64, std::byte{7}));
  std::vector<Reducescatter> steps;
  for (int member = 0; member < 2; ++member)
    steps.emplace_back(
        group.group(member), step_identity(1),
        Reducescatter::Options{.rows = 4 + member,
                               .row_bytes = 4,
                               .input = input.data(),
                               .output = outputs[static_cast<std::size_t>(member)].data()});
  EXPECT_EQ(steps[0].advance(), Progress::kPending);
  for (const std::size_t member : {1U, 0U}) EXPECT_EQ(steps[member].advance(), Progress::kMismatch);
  for (const Buffer& output : outputs) EXPECT_TRUE(output == Buffer(64, std::byte{7}));
}

TEST(ReducescatterDeathTest, a_row_of_half_an_element_aborts) {
  GroupInTest group(1);
  const Reducescatter::Options options = {.rows = 1, .row_bytes = 6};
  EXPECT_DEATH(Reducescatter(group.group(0), step_identity(1), options), "whole elements");
}

}  // namespace
}  // namespace farandole
