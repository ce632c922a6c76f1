#include "collective/allgather.h"

#include <gtest/gtest.h>

#include <limits>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

constexpr std::int64_t kRowBytes = 12;
constexpr std::int64_t kWindowRows = static_cast<std::int64_t>(kWindowBytes) / kRowBytes;

// The inputs of the members in one step, and the output that all of them must get.
struct Case {
  std::vector<std::int64_t> rows;
  std::int64_t row_bytes = kRowBytes;
  unsigned seed = 0;

  Buffer input_of(std::size_t member) const {
    return random_bytes(static_cast<std::size_t>(rows[member] * row_bytes),
                        seed * 64 + static_cast<unsigned>(member));
  }
  Buffer expected() const {
    Buffer all;
    for (std::size_t member = 0; member < rows.size(); ++member) {
      const Buffer input = input_of(member);
      all.insert(all.end(), input.begin(), input.end());
    }
    return all;
  }
};

// One member's part of a case. Its output is allocated when the rows of all members are known.
struct MemberPart {
  MemberPart(const Case& test_case, int member)
      : input(test_case.input_of(static_cast<std::size_t>(member))) {}

  CollectiveStep step(Group& group, std::uint32_t sequence, const Case& test_case) {
    return Allgather(
        group, step_identity(sequence),
        {.input = input.data(),
         .rows = test_case.rows[static_cast<std::size_t>(group.member)],
         .row_bytes = test_case.row_bytes,
         .allocate = [this, row_bytes = test_case.row_bytes](std::span<const std::int64_t> all) {
           EXPECT_TRUE(rows.empty()) << "memory was requested twice";
           rows.assign(all.begin(), all.end());
           std::int64_t total = 0;
           for (const std::int64_t count : all) total += count;
           output.resize(static_cast<std::size_t>(total * row_bytes));
           return output.data();
         }});
  }

  Buffer input;
  Buffer output;
  std::vector<std::int64_t> rows;
};

// In the first eight cases, members contribute no bytes, few bytes, about a window, or several
// windows. Each case rotates these sizes by one member. In each of the other cases, all members
// contribute the same number of rows.
std::vector<Case> uneven_cases(int members) {
  const std::int64_t counts[] = {0, 1, kWindowRows, 3, kWindowRows + 1, 6 * kWindowRows + 7, 0, 2};
  std::vector<Case> cases;
  for (unsigned seed = 0; seed < 8; ++seed) {
    Case test_case = {.rows = {}, .seed = seed};
    for (unsigned member = 0; member < static_cast<unsigned>(members); ++member)
      test_case.rows.push_back(counts[(member + seed) % 8]);
    cases.push_back(test_case);
  }
  const auto size = static_cast<std::size_t>(members);
  cases.push_back({.rows = std::vector<std::int64_t>(size, 0), .seed = 8});
  cases.push_back({.rows = std::vector<std::int64_t>(size, 100), .seed = 9});
  cases.push_back({.rows = std::vector<std::int64_t>(size, 5), .row_bytes = 0, .seed = 10});
  return cases;
}

class AllgatherMembers : public ::testing::TestWithParam<int> {};

TEST_P(AllgatherMembers, all_members_get_all_rows_in_rank_order) {
  GroupInTest group(GetParam());
  const std::vector<Case> cases = uneven_cases(GetParam());
  std::vector<Buffer> expected;
  for (const Case& test_case : cases) expected.push_back(test_case.expected());
  group.run_in_threads([&](int member) {
    for (std::uint32_t index = 0; index < cases.size(); ++index) {
      MemberPart part(cases[index], member);
      CollectiveStep step = part.step(group.group(member), index + 1, cases[index]);
      ASSERT_EQ(group.finish(member, step), Progress::kDone);
      EXPECT_TRUE(same_bytes(part.output, expected[index]))
          << "member " << member << " step " << index;
      EXPECT_EQ(part.rows, cases[index].rows);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, AllgatherMembers, ::testing::Values(1, 2, 3, 5, 8));

TEST(AllgatherOrder, any_order_of_the_members_gives_the_same_result) {
  for (const int members : {2, 3, 5}) {
    GroupInTest group(members);
    for (std::uint32_t sequence = 1; sequence <= 12; ++sequence) {
      std::mt19937 random(sequence);
      Case test_case = {.rows = {}, .seed = sequence};
      for (int member = 0; member < members; ++member)
        test_case.rows.push_back(random() % 2 * 50 + random() % 8 * kWindowRows);
      std::vector<MemberPart> parts;
      for (int member = 0; member < members; ++member) parts.emplace_back(test_case, member);
      std::vector<CollectiveStep> steps;
      for (int member = 0; member < members; ++member)
        steps.push_back(
            parts[static_cast<std::size_t>(member)].step(group.group(member), sequence, test_case));
      group.finish_in_random_order(steps, sequence);
      ASSERT_FALSE(::testing::Test::HasFailure());
      const Buffer expected = test_case.expected();
      for (const MemberPart& part : parts)
        ASSERT_TRUE(same_bytes(part.output, expected)) << members << " members, step " << sequence;
    }
  }
}

TEST(Allgather, a_member_without_memory_for_the_result_still_sends_its_rows) {
  GroupInTest group(2);
  const Case test_case = {.rows = {2 * kWindowRows, 6 * kWindowRows}};
  MemberPart member_without_memory(test_case, 0);
  MemberPart member_with_memory(test_case, 1);
  std::vector<CollectiveStep> steps;
  steps.push_back(Allgather(group.group(0), step_identity(1),
                            {.input = member_without_memory.input.data(),
                             .rows = test_case.rows[0],
                             .row_bytes = kRowBytes,
                             .allocate = [](std::span<const std::int64_t>) {
                               return static_cast<std::byte*>(nullptr);
                             }}));
  steps.push_back(member_with_memory.step(group.group(1), 1, test_case));
  group.finish_in_random_order(steps, 1);
  EXPECT_TRUE(member_with_memory.output == test_case.expected());
}

// Member 0's call in a test. The result of the call is too large for any memory.
Allgather call_without_memory(GroupInTest& group) {
  return {group.group(0),
          step_identity(1),
          {.row_bytes = kRowBytes, .allocate = [](std::span<const std::int64_t>) {
             ADD_FAILURE() << "memory was requested for an impossible size";
             return static_cast<std::byte*>(nullptr);
           }}};
}

TEST(Allgather, a_member_size_that_overflows_is_a_mismatch) {
  GroupInTest group(2);
  Allgather step = call_without_memory(group);
  EXPECT_EQ(step.advance(), Progress::kPending);
  // No member can contribute that much memory, so the test writes the entry of member 1 by hand.
  group.group(1).board->enter(1, 1,
                              {.identity = step_identity(1).id,
                               .declared_count = std::numeric_limits<std::int64_t>::max()});
  EXPECT_EQ(step.advance(), Progress::kMismatch);
}

TEST(Allgather, a_total_size_that_overflows_is_a_mismatch) {
  constexpr std::int64_t kRowsMax = std::numeric_limits<std::int64_t>::max() / kRowBytes;
  GroupInTest group(3);
  Allgather step = call_without_memory(group);
  EXPECT_EQ(step.advance(), Progress::kPending);
  for (const int member : {1, 2})
    group.group(member).board->enter(1, 1,
                                     {.identity = step_identity(1).id, .declared_count = kRowsMax});
  EXPECT_EQ(step.advance(), Progress::kMismatch);
}

}  // namespace
}  // namespace farandole
