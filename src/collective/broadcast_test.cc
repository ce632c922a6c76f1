#include "collective/broadcast.h"

#include <gtest/gtest.h>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 63, kWindow - 1, kWindow, kWindow + 1, 6 * kWindow + 5};

CollectiveStep step_of(const Group& group, std::uint32_t sequence, int root, const Buffer& input,
                       Buffer& output) {
  return Broadcast(group, step_identity(sequence),
                   {.root = root,
                    .bytes = static_cast<std::int64_t>(output.size()),
                    .input = group.member == root ? input.data() : nullptr,
                    .output = output.data()});
}

class BroadcastMembers : public ::testing::TestWithParam<int> {};

TEST_P(BroadcastMembers,
       is_correct_for_every_size_from_first_and_last_root_in_place_and_out_of_place) {
  const int members = GetParam();
  GroupInTest group(members);
  group.run_in_threads([&](int member) {
    std::uint32_t sequence = 0;
    for (const int root : {0, members - 1}) {
      for (const std::int64_t size : kSizes) {
        ++sequence;
        const Buffer input = random_bytes(static_cast<std::size_t>(size), sequence);
        const bool in_place = sequence % 2 == 0 && member == root;
        Buffer output = in_place ? input : Buffer(input.size());
        CollectiveStep step =
            step_of(group.group(member), sequence, root, in_place ? output : input, output);
        ASSERT_EQ(group.finish(member, step), Progress::kDone);
        EXPECT_TRUE(same_bytes(output, input)) << "member " << member << " of " << members
                                               << ", root " << root << ", " << size << " bytes";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, BroadcastMembers, ::testing::Values(1, 2, 3, 4, 8));

TEST(BroadcastOrder, any_order_of_the_members_gives_the_same_result) {
  for (const int members : {2, 3, 5}) {
    GroupInTest group(members);
    for (std::uint32_t sequence = 1; sequence <= 20; ++sequence) {
      const int root = static_cast<int>(sequence) % members;
      const Buffer input = random_bytes(sequence % 9 * kWindowBytes + sequence, sequence);
      std::vector<Buffer> outputs(static_cast<std::size_t>(members), Buffer(input.size()));
      std::vector<CollectiveStep> steps;
      for (int member = 0; member < members; ++member)
        steps.push_back(step_of(group.group(member), sequence, root, input,
                                outputs[static_cast<std::size_t>(member)]));
      group.finish_in_random_order(steps, sequence);
      ASSERT_FALSE(::testing::Test::HasFailure());
      for (const Buffer& output : outputs)
        ASSERT_TRUE(same_bytes(output, input)) << members << " members, step " << sequence;
    }
  }
}

TEST(Broadcast, different_sizes_are_a_mismatch_and_nothing_is_written) {
  GroupInTest group(2);
  const Buffer input(65, std::byte{1});
  Buffer first(64, std::byte{7});
  Buffer second(65, std::byte{7});
  CollectiveStep root = step_of(group.group(0), 1, 0, input, first);
  CollectiveStep reader = step_of(group.group(1), 1, 0, input, second);
  EXPECT_EQ(advance(root), Progress::kPending);
  EXPECT_EQ(advance(reader), Progress::kMismatch);
  EXPECT_EQ(advance(root), Progress::kMismatch);
  EXPECT_TRUE(first == Buffer(64, std::byte{7}));
  EXPECT_TRUE(second == Buffer(65, std::byte{7}));
}

}  // namespace
}  // namespace farandole
