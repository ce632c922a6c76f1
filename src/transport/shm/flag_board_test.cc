#include "transport/shm/flag_board.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "transport/shm/segment.h"
#include "transport/shm/sleep_in_test.h"

namespace farandole {
namespace {

// The boards of all members of one group, world ranks 0 … members − 1.
class Boards {
 public:
  explicit Boards(int members)
      : bells_(Segment::create("farandole-test", Doorbells::bytes_needed(members)).value()),
        memory_(Segment::create("farandole-test", FlagBoard::bytes_needed(members)).value()) {
    std::vector<int> ranks;
    for (int rank = 0; rank < members; ++rank) ranks.push_back(rank);
    for (int rank = 0; rank < members; ++rank)
      doorbells_.push_back(std::make_unique<Doorbells>(bells_->data(), rank, members));
    for (int rank = 0; rank < members; ++rank)
      boards_.emplace_back(memory_->data(), rank, ranks, *doorbells_[static_cast<size_t>(rank)]);
  }
  FlagBoard& operator[](int rank) { return boards_[static_cast<size_t>(rank)]; }
  // Returns memory for the board of a group of two members: the beginning of our memory.
  std::byte* pair_memory() { return memory_->data(); }
  Doorbells& doorbells(int rank) { return *doorbells_[static_cast<size_t>(rank)]; }

 private:
  std::shared_ptr<Segment> bells_;   // this is the only owner
  std::shared_ptr<Segment> memory_;  // this is the only owner
  std::vector<std::unique_ptr<Doorbells>> doorbells_;
  std::vector<FlagBoard> boards_;
};

TEST(FlagBoard, EntriesAreReadableWhenAllHaveEntered) {
  Boards boards(2);
  boards[0].own_inline_payload(1)[kInlineBytes - 1] = std::byte{9};
  boards[0].enter(1, 1, {.identity = 10, .declared_count = -12, .input = 11, .output = 13});
  EXPECT_FALSE(boards[0].all_entered());
  boards[1].enter(1, 1, {.identity = 20, .declared_count = 22});
  EXPECT_TRUE(boards[0].all_entered() && boards[1].all_entered());
  EXPECT_EQ(boards[1].entry(0).identity, 10u);
  EXPECT_EQ(boards[1].entry(0).declared_count, -12);
  EXPECT_EQ(boards[1].entry(0).input, 11u);
  EXPECT_EQ(boards[1].entry(0).output, 13u);
  EXPECT_EQ(boards[1].inline_payload(0)[kInlineBytes - 1], std::byte{9});
  EXPECT_EQ(boards[0].entry(1).identity, 20u);
}

TEST(FlagBoard, AnotherGenerationOrSequenceIsNotTheSameStep) {
  Boards boards(2);
  boards[0].enter(1, 1, {});
  boards[1].enter(2, 1, {});
  EXPECT_FALSE(boards[0].all_entered() || boards[1].all_entered());
  boards[0].enter(2, 3, {});  // the same slot
  EXPECT_FALSE(boards[0].all_entered() || boards[1].all_entered());
}

// Member 0 first waits for member 1 and then for member 2. Stores of the other members do not wake
// member 0.
TEST(FlagBoard, OnlyTheAwaitedMemberWakesASleeper) {
  Boards boards(4);
  Doorbells& doorbells = boards.doorbells(0);
  boards[0].enter(1, 1, {});
  EXPECT_FALSE(boards[0].all_entered());
  const auto bell = doorbells.prepare_sleep();
  boards[3].enter(1, 1, {});
  EXPECT_EQ(doorbells.prepare_sleep(), bell);
  boards[1].enter(1, 1, {});
  EXPECT_EQ(doorbells.prepare_sleep(), bell + 1);
  EXPECT_FALSE(boards[0].all_entered());
  boards[1].publish_phase(1);
  EXPECT_EQ(doorbells.prepare_sleep(), bell + 1);
  boards[2].enter(1, 1, {});
  EXPECT_EQ(doorbells.prepare_sleep(), bell + 2);
  EXPECT_TRUE(boards[0].all_entered());
}

// A member that has abandoned a step waits for all other members.
TEST(FlagBoard, AllMembersWakeOneThatHasAbandonedItsStep) {
  Boards boards(3);
  Doorbells& doorbells = boards.doorbells(0);
  for (int rank = 0; rank < 3; ++rank) boards[rank].enter(1, 1, {});
  EXPECT_TRUE(boards[2].all_entered());
  boards[2].publish_phase(1);
  EXPECT_FALSE(boards[0].all_reached(1));
  boards[0].abandon();
  const auto bell = doorbells.prepare_sleep();
  boards[2].publish_phase(2);
  EXPECT_EQ(doorbells.prepare_sleep(), bell + 1);
  boards[1].publish_phase(1);
  EXPECT_EQ(doorbells.prepare_sleep(), bell + 2);
}

// A check begins with the member that was missing last, and must still include all members.
TEST(FlagBoard, EveryMemberMayComeLast) {
  constexpr int kMembers = 4;
  Boards boards(kMembers);
  for (std::uint32_t step = 1; step <= kMembers * kMembers; ++step) {
    const int last_member = static_cast<int>(step) * 3 % kMembers;
    for (int rank = 0; rank < kMembers; ++rank)
      if (rank != last_member) boards[rank].enter(1, step, {});
    for (int rank = 0; rank < kMembers; ++rank)
      EXPECT_TRUE(rank == last_member || !boards[rank].all_entered()) << step;
    boards[last_member].enter(1, step, {});
    for (int rank = 0; rank < kMembers; ++rank) EXPECT_TRUE(boards[rank].all_entered()) << step;
  }
}

// A member that enters step 3 reuses the line of step 1. The slowest member may still read the line
// of step 2.
TEST(FlagBoard, TheNextStepUsesAnotherLine) {
  Boards boards(2);
  for (const std::uint32_t step : {1u, 2u})
    for (int rank = 0; rank < 2; ++rank) boards[rank].enter(1, step, {.declared_count = step});
  boards[0].enter(1, 3, {.declared_count = 3});
  EXPECT_TRUE(boards[1].all_entered());
  EXPECT_EQ(boards[1].entry(0).declared_count, 2);
}

TEST(FlagBoard, PhasesStartAtZeroInEveryStep) {
  Boards boards(2);
  for (const std::uint32_t step : {1u, 2u, 3u}) {
    for (int rank = 0; rank < 2; ++rank) boards[rank].enter(1, step, {});
    EXPECT_EQ(boards[1].phase(0), 0u);
    EXPECT_TRUE(boards[1].all_reached(0));
    boards[0].publish_phase(5);
    EXPECT_EQ(boards[1].phase(0), 5u);
    EXPECT_FALSE(boards[1].all_reached(1));
    boards[1].publish_phase(4);
    EXPECT_TRUE(boards[1].all_reached(4));
    EXPECT_FALSE(boards[1].all_reached(5));
  }
}

TEST(FlagBoard, ARolledBackStepComesAgainUnderANewerGeneration) {
  Boards boards(2);
  for (int rank = 0; rank < 2; ++rank) boards[rank].enter(1, 1, {});
  boards[0].enter(1, 2, {.identity = 7});
  boards[0].roll_back();
  EXPECT_EQ(boards[0].generation(), 0u);
  boards[1].enter(2, 2, {.identity = 8});
  EXPECT_FALSE(boards[1].all_entered());
  boards[0].enter(2, 2, {.identity = 9});
  EXPECT_TRUE(boards[1].all_entered());
  EXPECT_EQ(boards[1].entry(0).identity, 9u);
}

// Member 0 has already read all words when member 1 enters again, now with the same entry as member
// 0.
TEST(FlagBoard, ANewEntryIsNeverMistakenForTheOldOne) {
  Boards boards(2);
  boards[0].enter(1, 1, {.identity = 5});
  boards[1].enter(1, 1, {.identity = 6});
  EXPECT_TRUE(boards[0].all_entered());
  EXPECT_EQ(boards[0].identity(1), 6u);
  boards[1].roll_back();
  boards[1].enter(2, 1, {.identity = 5});
  EXPECT_NE(boards[0].identity(1), 5u);
  boards[0].roll_back();
  boards[0].enter(2, 1, {.identity = 5});
  EXPECT_EQ(boards[0].identity(1), 5u);
}

TEST(FlagBoard, AMemberThatLeftOrAnyRankThatDiedIsGone) {
  Boards boards(3);
  FlagBoard pair_board(boards.pair_memory(), 0, {0, 1}, boards.doorbells(0));
  EXPECT_FALSE(boards[0].any_member_gone() || pair_board.any_member_gone());
  boards.doorbells(2).leave("done");
  EXPECT_TRUE(boards[0].any_member_gone());
  EXPECT_FALSE(pair_board.any_member_gone());
  boards.doorbells(1).close(2);
  EXPECT_TRUE(pair_board.any_member_gone());
}

TEST(FlagBoardDeathTest, ThereMustBeACurrentStep) {
  Boards boards(1);
  EXPECT_DEATH((void)boards[0].all_entered(), "current step");
  EXPECT_DEATH(boards[0].publish_phase(1), "current step");
  EXPECT_DEATH(boards[0].roll_back(), "current step");
}

// Runs `steps` steps that follow step `start`, and checks the sum of the declared counts in each
// step.
void sum_steps(Boards& boards, int rank, std::uint32_t start, std::uint32_t steps) {
  FlagBoard& board = boards[rank];
  Doorbells& doorbells = boards.doorbells(rank);
  for (std::uint32_t i = 1; i <= steps; ++i) {
    const std::uint32_t sequence = start + i;
    board.enter(1, sequence,
                {.identity = sequence, .declared_count = (rank + 1) * std::int64_t{i}});
    sleep_until(doorbells, [&] { return board.all_entered(); });
    std::int64_t sum = 0;
    for (int other = 0; other < board.members(); ++other) sum += board.entry(other).declared_count;
    const std::int64_t members = board.members();
    ASSERT_EQ(sum, members * (members + 1) / 2 * std::int64_t{i});
    board.publish_phase(1);
    if (i % 3 == 0) sleep_until(doorbells, [&] { return board.all_reached(1); });
  }
}

void run_in_threads(int members, std::uint32_t start, std::uint32_t steps) {
  Boards boards(members);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < members; ++rank)
    threads.emplace_back([&boards, rank, start, steps] { sum_steps(boards, rank, start, steps); });
}

TEST(FlagBoard, SleepingThreadsSumTheirCounts) { run_in_threads(3, 0, 1500); }

TEST(FlagBoard, SequencesContinueAfterWrappingAround) { run_in_threads(2, 0xffff'ffff - 20, 40); }

// Member 0 enters the step and then closes the group. Member 1 enters the step only after this. So
// member 1 must not run the step, although both members have entered it.
TEST(FlagBoardEnd, AStepThatNotAllHadEnteredIsClosedForAll) {
  Boards boards(2);
  boards[0].enter(1, 1, {.identity = 1});
  EXPECT_TRUE(boards[0].try_close());
  boards[1].enter(1, 1, {.identity = 1});
  EXPECT_TRUE(boards[1].all_entered());
  EXPECT_FALSE(boards[1].may_run());
  EXPECT_TRUE(boards[1].try_close());
  EXPECT_TRUE(boards[0].try_close());
}

TEST(FlagBoardEnd, AStepThatAllHaveEnteredIsKeptForAll) {
  Boards boards(2);
  for (int rank = 0; rank < 2; ++rank) boards[rank].enter(1, 1, {.identity = 1});
  EXPECT_FALSE(boards[0].try_close());
  EXPECT_TRUE(boards[1].may_run());
  EXPECT_FALSE(boards[1].try_close());
  // The next step can still be closed.
  boards[1].enter(1, 2, {.identity = 1});
  EXPECT_TRUE(boards[1].try_close());
  EXPECT_FALSE(boards[0].try_close());
  EXPECT_TRUE(boards[0].may_run());
  boards[0].enter(1, 2, {.identity = 1});
  EXPECT_FALSE(boards[0].may_run());
}

TEST(FlagBoardEnd, AStepWithDifferentIdentitiesIsClosed) {
  Boards boards(2);
  boards[0].enter(1, 1, {.identity = 1});
  boards[1].enter(1, 1, {.identity = 2});
  EXPECT_TRUE(boards[0].try_close());
}

TEST(FlagBoardEnd, SequencesWrapAround) {
  Boards boards(2);
  const std::uint32_t last_sequence = 0xFFFFFFFF;
  for (int rank = 0; rank < 2; ++rank) boards[rank].enter(1, last_sequence, {.identity = 1});
  EXPECT_FALSE(boards[0].try_close());
  boards[0].enter(1, 0, {.identity = 1});
  EXPECT_TRUE(boards[1].may_run());
  EXPECT_TRUE(boards[0].try_close());
  EXPECT_TRUE(boards[1].may_run());
  EXPECT_FALSE(boards[1].try_close());
}

TEST(FlagBoardEnd, AMemberMayWriteUntilItsLastPhaseOrUntilItIsGone) {
  Boards boards(4);
  for (int rank = 0; rank < 4; ++rank) boards[rank].enter(1, 1, {.identity = 1});
  const auto writers = [&] {
    std::vector<int> members;
    for (int rank = 0; rank < 4; ++rank)
      if (boards[0].may_still_write(rank)) members.push_back(rank);
    return members;
  };
  EXPECT_EQ(writers(), (std::vector{1, 2, 3}));
  boards[0].set_last_phase(3);
  boards[1].publish_phase(2);
  EXPECT_EQ(writers(), (std::vector{1, 2, 3}));
  boards[1].publish_phase(3);
  EXPECT_EQ(writers(), (std::vector{2, 3}));
  boards[2].abandon();
  EXPECT_EQ(writers(), (std::vector{3}));
  boards.doorbells(3).leave("enough");
  EXPECT_EQ(writers(), (std::vector<int>{}));
}

}  // namespace
}  // namespace farandole
