// Messages between whole engines in one process: every rank is a thread. mailbox_test.cc tests the
// matching in any order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/job_in_test.h"
#include "engine/processes_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kElementCounts[] = {0, 7, 3000, 100'000};  // by tag

Submission message(Operation operation, int peer, std::vector<std::int32_t>& values, int tag,
                   const std::string& name) {
  Submission submission;
  submission.operation = operation;
  submission.name = name;
  submission.dtype = DType::kInt32;
  submission.shape = {static_cast<std::int64_t>(values.size())};
  submission.input = submission.output = values.data();
  submission.peer = peer;
  submission.tag = tag;
  return submission;
}

Outcome receive(Engine& engine, int peer, std::vector<std::int32_t>& values, int tag = 0) {
  return finish(engine, engine.submit(message(Operation::kReceive, peer, values, tag, "receive")));
}

class MessagesOfSize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, MessagesOfSize, ::testing::Values(2, 3, 9));

// Every rank sends a message of each size to all other ranks, and drops some of the handles. Each
// size has its own tag. Each rank receives the messages in a random order of tags, with pauses; for
// every second tag it receives from any rank.
TEST_P(MessagesOfSize, ArriveBetweenAllPairs) {
  const int size = GetParam();
  run_job(size, {}, [size](Engine& engine) {
    const int rank = engine.topology().rank;
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<std::vector<std::int32_t>> memory;
    memory.reserve(static_cast<std::size_t>(size) * std::size(kElementCounts));
    std::vector<Handle> sends;
    for (int peer = 0; peer < size; ++peer)
      for (std::size_t tag = 0; tag < std::size(kElementCounts) && peer != rank; ++tag) {
        const auto value = static_cast<std::int32_t>(tag) * 100 + rank * size + peer;
        auto& values = memory.emplace_back(kElementCounts[tag], value);
        const auto name = std::to_string(peer) + "/" + std::to_string(tag);
        const auto handle =
            engine.submit(message(Operation::kSend, peer, values, static_cast<int>(tag), name));
        ASSERT_TRUE(handle.ok()) << handle.status().message();
        sends.push_back(*handle);
        if (random() % 3 == 0) engine.drop(*handle);
      }
    std::vector<std::size_t> tags = {0, 1, 2, 3};
    std::ranges::shuffle(tags, random);
    for (const std::size_t tag : tags)
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        std::vector<std::int32_t> values(kElementCounts[tag]);
        const Outcome outcome =
            receive(engine, tag % 2 == 0 ? kAnyRank : peer, values, static_cast<int>(tag));
        ASSERT_EQ(outcome.status, Status());
        const auto expected = static_cast<std::int32_t>(tag) * 100 + outcome.source * size + rank;
        ASSERT_EQ(values, std::vector<std::int32_t>(kElementCounts[tag], expected));
      }
    for (const Handle send : sends) ASSERT_TRUE(engine.wait(send, kTestTimeout));
    ASSERT_EQ(barrier(engine), Status());
  });
}

TEST(Messages, ALeaveEndsOnlyTheMessagesOfThatRank) {
  std::latch rank_1_has_left(1);
  run_job(3, {}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    std::vector<std::int32_t> values(20'000, rank);
    if (rank == 1) {
      EXPECT_TRUE(engine.shutdown("enough").ok());
      return rank_1_has_left.count_down();
    }
    rank_1_has_left.wait();
    if (rank == 0) {
      const Outcome from_rank_1 = receive(engine, 1, values);
      EXPECT_EQ(from_rank_1.status.code(), StatusCode::kRebuildGroup);
      EXPECT_THAT(from_rank_1.status.message(), HasSubstr("recv `receive` cannot finish: rank 1"));
      EXPECT_EQ(receive(engine, kAnyRank, values).source, 2);
      EXPECT_EQ(values.front(), 2);
      return;
    }
    const auto send = engine.submit(message(Operation::kSend, 0, values, 0, "send"));
    EXPECT_EQ(finish(engine, send).status, Status());
  });
}

TEST(Messages, ASmallSendIsDoneWithoutAReceive) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<std::int32_t> values(3'000'000, 5);
    if (engine.topology().rank == 1) {
      EXPECT_EQ(receive(engine, 0, values).status, Status());
      EXPECT_EQ(barrier(engine), Status());
      return;
    }
    const auto large_send = engine.submit(message(Operation::kSend, 1, values, 0, "large"));
    std::vector<std::int32_t> small_values(1);
    const auto small_send = engine.submit(message(Operation::kSend, 1, small_values, 1, "small"));
    EXPECT_EQ(finish(engine, large_send).status, Status());
    EXPECT_EQ(finish(engine, small_send).status, Status());
    EXPECT_EQ(barrier(engine), Status());
  });
}

// A join releases all names of its group, also the names of messages in flight.
TEST(Messages, ContinueAcrossAJoin) {
  run_job(2, {}, [](Engine& engine) {
    const int rank = engine.topology().rank;
    Submission join;
    join.operation = Operation::kJoin;
    std::vector<std::int32_t> early_values(4, rank);
    std::vector<std::int32_t> late_values(20'000, rank);
    const auto receive_before_join =
        rank == 0 ? engine.submit(message(Operation::kReceive, 1, late_values, 0, "before"))
                  : Handle{};
    const auto join_handle = engine.submit(join);
    // A rank that has joined still sends and receives.
    const auto operation = rank == 0 ? Operation::kSend : Operation::kReceive;
    ASSERT_EQ(finish(engine, engine.submit(message(operation, 1 - rank, early_values, 1, "while")))
                  .status,
              Status());
    EXPECT_EQ(early_values.back(), 0);
    ASSERT_EQ(finish(engine, join_handle).status, Status());
    ASSERT_EQ(barrier(engine), Status());
    if (rank == 1)
      ASSERT_EQ(finish(engine, engine.submit(message(Operation::kSend, 0, late_values, 0, "after")))
                    .status,
                Status());
    else
      ASSERT_EQ(finish(engine, receive_before_join).status, Status());
    EXPECT_EQ(late_values.back(), 1);
    ASSERT_EQ(barrier(engine), Status());
  });
}

// The data of a large message arrives completely, even if the sender leaves as soon as it can.
TEST(Messages, ALeaverSendsWhatWasAccepted) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<std::int32_t> values(1'000'000, engine.topology().rank);
    if (engine.topology().rank == 1) {
      const auto send = engine.submit(message(Operation::kSend, 0, values, 0, "large"));
      EXPECT_EQ(finish(engine, send).status, Status());
      EXPECT_TRUE(engine.shutdown("enough").ok());
      return;
    }
    EXPECT_EQ(receive(engine, 1, values).status, Status());
    EXPECT_EQ(values, std::vector<std::int32_t>(values.size(), 1));
  });
}

TEST(Messages, ADeathEndsTheMessages) {
  const auto statuses = run_processes(2, [](int rank, Engine& engine) {
    std::vector<std::int32_t> values(1'000'000, rank);
    std::thread killer;
    if (rank == 1) killer = kill_this_process_after(std::chrono::milliseconds(10));
    for (;;) {
      const auto operation = rank == 1 ? Operation::kSend : Operation::kReceive;
      const auto call = engine.submit(message(operation, 1 - rank, values, 0, "large"));
      if (!call.ok()) return exit_code_for(call.status(), "rank 1 (pid ");
      if (!engine.wait(*call, kTestTimeout)) return 1;
      if (const Status status = engine.take(*call).status; !status.ok()) {
        std::ranges::fill(values, 7);  // after the error, no rank writes to this memory
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (std::ranges::count(values, 7) != std::ssize(values)) return 2;
        return exit_code_for(status, "rank 1 (pid ");
      }
    }
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(WEXITSTATUS(statuses[0]), kPassed);
}

TEST(Messages, TheOtherRankMustBeInTheGroup) {
  run_job(2, {}, [](Engine& engine) {
    const int rank = engine.topology().rank;
    std::vector<std::int32_t> values(1);
    for (const int peer : {rank, 2, -2}) {
      const auto send = engine.submit(message(Operation::kSend, peer, values, 0, "x"));
      EXPECT_EQ(send.status().code(), StatusCode::kFixCall);
      EXPECT_THAT(send.status().message(), HasSubstr("name another rank of the group (0, 1)"));
    }
    EXPECT_FALSE(engine.submit(message(Operation::kSend, kAnyRank, values, 0, "x")).ok());
    Submission long_channel = message(Operation::kSend, 1 - rank, values, 0, "x");
    long_channel.channel.assign(257, 'c');
    EXPECT_THAT(engine.submit(long_channel).status().message(), HasSubstr("257 bytes"));
  });
}

}  // namespace
}  // namespace farandole
