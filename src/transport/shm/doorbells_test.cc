#include "transport/shm/doorbells.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "transport/shm/segment.h"
#include "transport/shm/sleep_in_test.h"

namespace farandole {
namespace {

std::shared_ptr<Segment> segment_for(int size) {
  return Segment::create("farandole-test", Doorbells::bytes_needed(size)).value();
}

TEST(Doorbells, ABellRungAfterPrepareEndsTheSleep) {
  const auto memory = segment_for(2);
  Doorbells a(memory->data(), 0, 2);
  Doorbells b(memory->data(), 1, 2);
  const auto ticket = a.prepare_sleep();
  b.ring(0);
  EXPECT_TRUE(sleep_and_see_bell(a, ticket));
  const auto second_ticket = a.prepare_sleep();
  a.ring_self();
  EXPECT_TRUE(sleep_and_see_bell(a, second_ticket));
}

TEST(Doorbells, ASleepEndsAtItsLimit) {
  const auto memory = segment_for(1);
  Doorbells alone(memory->data(), 0, 1);
  alone.sleep(alone.prepare_sleep(), std::chrono::milliseconds(1));
  alone.sleep(alone.prepare_sleep(), -std::chrono::milliseconds(1));
}

TEST(Doorbells, SleepingThreadsPassATokenAround) {
  constexpr int kSize = 3;
  constexpr int kRounds = 2000;
  const auto memory = segment_for(kSize);
  std::atomic<int> token = 0;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] {
      Doorbells doorbells(memory->data(), rank, kSize);
      for (int round = 0; round < kRounds; ++round) {
        const int own_token = round * kSize + rank;
        sleep_until(doorbells, [&] { return token.load() == own_token; });
        token.store(own_token + 1);
        doorbells.ring((rank + 1) % kSize);
      }
    });
  threads.clear();
  EXPECT_EQ(token.load(), kSize * kRounds);
}

// Like SleepingThreadsPassATokenAround, but between processes. The child maps the memory again,
// like another worker.
TEST(Doorbells, ProcessesWakeEachOther) {
  constexpr std::uint32_t kRounds = 2000;
  const auto bells = segment_for(2);
  const auto token_segment = Segment::create("farandole-test", sizeof(std::uint32_t)).value();
  const auto pass_token = [&](int rank) {
    const auto my_bells = Segment::attach(bells->descriptor(), Doorbells::bytes_needed(2)).value();
    const auto my_token_segment =
        Segment::attach(token_segment->descriptor(), sizeof(std::uint32_t)).value();
    auto& token = *reinterpret_cast<std::atomic<std::uint32_t>*>(my_token_segment->data());
    Doorbells doorbells(my_bells->data(), rank, 2);
    for (auto own_token = static_cast<std::uint32_t>(rank); own_token < 2 * kRounds;
         own_token += 2) {
      sleep_until(doorbells, [&] { return token.load() == own_token; });
      token.store(own_token + 1);
      doorbells.ring(1 - rank);
    }
    return token.load();
  };
  const auto child = ::fork();
  if (child == 0) {
    pass_token(1);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ASSERT_GT(child, 0);
  EXPECT_GE(pass_token(0), 2 * kRounds - 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Doorbells, LeaversHaveTicketsAndReasons) {
  const auto memory = segment_for(3);
  Doorbells a(memory->data(), 0, 3);
  Doorbells b(memory->data(), 1, 3);
  Doorbells c(memory->data(), 2, 3);
  EXPECT_FALSE(a.leaver(2).has_value());
  c.leave("ValueError: the loss is nan");
  b.leave(std::string(kLeaveReasonBytesMax + 100, 'x'));
  EXPECT_EQ(a.leaver(2)->ticket, 1u);
  EXPECT_EQ(a.leaver(2)->reason, "ValueError: the loss is nan");
  EXPECT_EQ(a.leaver(1)->ticket, 2u);
  EXPECT_EQ(a.leaver(1)->reason, std::string(kLeaveReasonBytesMax, 'x'));
  EXPECT_FALSE(a.closed_by().has_value());
}

TEST(Doorbells, LeavingWakesSleepers) {
  const auto memory = segment_for(2);
  Doorbells a(memory->data(), 0, 2);
  Doorbells b(memory->data(), 1, 2);
  const auto ticket = a.prepare_sleep();
  b.leave("");
  EXPECT_TRUE(sleep_and_see_bell(a, ticket));
  EXPECT_EQ(a.leaver(1)->reason, "");
}

TEST(Doorbells, TheFirstDeathIsKeptAndWakesAllRanks) {
  const auto memory = segment_for(3);
  Doorbells a(memory->data(), 0, 3);
  Doorbells b(memory->data(), 1, 3);
  const auto ticket_of_a = a.prepare_sleep();
  const auto ticket_of_b = b.prepare_sleep();
  a.close(2);
  EXPECT_TRUE(sleep_and_see_bell(a, ticket_of_a));
  EXPECT_TRUE(sleep_and_see_bell(b, ticket_of_b));
  a.close(1);
  EXPECT_EQ(a.closed_by(), 2);
  EXPECT_EQ(b.closed_by(), 2);
}

}  // namespace
}  // namespace farandole
