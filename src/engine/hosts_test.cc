// Engines of jobs on several hosts.
#include <gmock/gmock.h>

#include <deque>
#include <latch>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "engine/hosts_in_test.h"

namespace farandole {
namespace {

class EngineOnHosts : public testing::TestWithParam<HostOfRank> {};

TEST_P(EngineOnHosts, AllreduceSumsOverAllHosts) {
  const int size = static_cast<int>(GetParam().size());
  run_job(GetParam(), {}, [&](Engine& engine) {
    EXPECT_EQ(engine.topology().size, size);
    for (const std::size_t count : {1U, 100U, 5000U, 300'000U}) {
      for (int round = 0; round < 5; ++round) {
        std::vector<float> values(count, static_cast<float>(engine.topology().rank + 1));
        ASSERT_EQ(allreduce(engine, values), Status());
        const auto sum = static_cast<float>(size * (size + 1) / 2);
        ASSERT_THAT(values, testing::Each(sum));
      }
    }
    ASSERT_EQ(barrier(engine), Status());
  });
}

// The order of the calls differs between the ranks, so they mispredict, and the coordinator
// decides.
TEST_P(EngineOnHosts, AgreesOnTheOrder) {
  const int size = static_cast<int>(GetParam().size());
  run_job(GetParam(), {}, [&](Engine& engine) {
    constexpr int kCalls = 6;
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<float>> values(kCalls);
      std::vector<Result<Handle>> handles(kCalls, Status::stop("not submitted"));
      for (int index = 0; index < kCalls; ++index) {
        const int call = (index + engine.topology().rank * (round % 3)) % kCalls;
        auto& own_values = values[static_cast<std::size_t>(call)];
        own_values.assign(10, static_cast<float>(call));
        handles[static_cast<std::size_t>(call)] =
            engine.submit(allreduce_of(own_values, "call " + std::to_string(call)));
      }
      for (int call = 0; call < kCalls; ++call) {
        ASSERT_EQ(finish(engine, handles[static_cast<std::size_t>(call)]).status, Status());
        ASSERT_THAT(values[static_cast<std::size_t>(call)],
                    testing::Each(static_cast<float>(call * size)));
      }
    }
  });
}

// Every rank leaves when its own last call is done. Data for other ranks may still be on its way.
TEST_P(EngineOnHosts, LeavesRightAfterTheLastCall) {
  const int size = static_cast<int>(GetParam().size());
  for (int round = 0; round < 10; ++round) {
    run_job(GetParam(), {}, [&](Engine& engine) {
      for (const std::size_t count : {1U, 200'000U}) {
        std::vector<float> values(count, 1.0F);
        ASSERT_EQ(allreduce(engine, values), Status());
        ASSERT_EQ(values.back(), static_cast<float>(size));
      }
    });
  }
}

// One rank leaves without the call that the other ranks make. On all hosts, the other ranks get an
// error that names this rank.
TEST_P(EngineOnHosts, ALeaveEndsTheCallsOfTheOthers) {
  const int size = static_cast<int>(GetParam().size());
  for (int leaver = 0; leaver < size; ++leaver) {
    run_job(GetParam(), {}, [&](Engine& engine) {
      std::vector<float> values(10, 1.0F);
      ASSERT_EQ(allreduce(engine, values), Status());
      if (engine.topology().rank == leaver) return;
      const Status status = allreduce(engine, values);
      EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
      EXPECT_THAT(status.message(), testing::HasSubstr("rank " + std::to_string(leaver) + " (pid"));
      EXPECT_THAT(status.message(), testing::HasSubstr("has left the job"));
    });
  }
}

// Rank 0 leaves in the middle of a call that the last rank has not made yet. All other ranks must
// learn that it has left, and why, and not that it has died. The tensor is large, because a small
// tensor would arrive together with the note.
TEST_P(EngineOnHosts, ALeaveInTheMiddleOfACallSaysWhy) {
  const int size = static_cast<int>(GetParam().size());
  std::latch has_left(1);
  run_job(GetParam(), {}, [&](Engine& engine) {
    std::vector<float> values(300'000, 1.0F);
    ASSERT_EQ(allreduce(engine, values), Status());
    const int rank = engine.topology().rank;
    if (rank == 0) {
      const auto handle = engine.submit(allreduce_of(values, "x"));
      EXPECT_EQ(engine.shutdown("raised ValueError"), Status());
      has_left.count_down();
      return;
    }
    if (rank == size - 1) has_left.wait();
    const Status status = finish(engine, engine.submit(allreduce_of(values, "x"))).status;
    EXPECT_THAT(status.message(), testing::HasSubstr("rank 0 (pid"));
    EXPECT_THAT(status.message(), testing::HasSubstr(") has left the job"));
    EXPECT_THAT(status.message(), testing::HasSubstr("(raised ValueError)"));
  });
}

// Some groups have members on one host only. They continue after another group has ended.
TEST(EngineWithGroupsOnHosts, AGroupOnOneHostContinues) {
  run_job(HostOfRank{0, 0, 1, 1}, {{0, 1}, {1, 2}}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    std::vector<float> values(10, 1.0F);
    ASSERT_EQ(allreduce(engine, values), Status());
    if (rank == 3) return;
    EXPECT_EQ(allreduce(engine, values).code(), StatusCode::kRebuildGroup);
    for (int round = 0; round < 10; ++round)
      for (const GroupId group : {1U, 2U}) {
        const auto ranks = engine.ranks_of(group);
        if (std::ranges::count(ranks, rank) == 0) continue;
        std::vector<float> ones(1000, 1.0F);
        ASSERT_EQ(allreduce(engine, ones, "", group), Status());
        ASSERT_THAT(ones, testing::Each(2.0F));
      }
  });
}

// A send of `memory` to `peer`, or a receive from `peer` into `memory`.
Submission message(Operation operation, int peer, std::vector<float>& memory) {
  Submission submission;
  submission.operation = operation;
  submission.name = (operation == Operation::kSend ? "to " : "from ") + std::to_string(peer);
  submission.dtype = DType::kFloat32;
  submission.shape = {static_cast<std::int64_t>(memory.size())};
  submission.input = submission.output = memory.data();
  submission.peer = peer;
  return submission;
}

// Every rank sends a message to each of the other ranks, and receives one from each.
TEST_P(EngineOnHosts, MessagesOfAllSizesReachAllRanks) {
  // Sizes in floats. A send of up to 2,048 floats may be done before the message is received.
  constexpr std::size_t kSizes[] = {0, 1, 2048, 2049, 300'000};
  run_job(GetParam(), {}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    const int size = engine.topology().size;
    for (const std::size_t count : kSizes) {
      std::vector<std::vector<float>> sent_values(static_cast<std::size_t>(size));
      std::vector<std::vector<float>> received_values(static_cast<std::size_t>(size));
      std::vector<Handle> handles;
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        auto& values_to_send = sent_values[static_cast<std::size_t>(peer)];
        auto& values_to_receive = received_values[static_cast<std::size_t>(peer)];
        values_to_send.assign(count, static_cast<float>(100 * rank + peer));
        values_to_receive.assign(count, -1.0F);
        handles.push_back(engine.submit(message(Operation::kSend, peer, values_to_send)).value());
        handles.push_back(
            engine.submit(message(Operation::kReceive, peer, values_to_receive)).value());
      }
      for (const Handle handle : handles) EXPECT_EQ(finish(engine, handle).status, Status());
      for (int peer = 0; peer < size; ++peer)
        EXPECT_THAT(received_values[static_cast<std::size_t>(peer)],
                    testing::Each(static_cast<float>(100 * peer + rank)));
    }
    ASSERT_EQ(barrier(engine), Status());
  });
}

// All ranks have the same list of messages. Each rank submits its sends and receives in an order of
// its own. Messages between two ranks with the same tag arrive in the order of the list.
TEST_P(EngineOnHosts, RandomMessagesArriveInOrder) {
  struct SentMessage {
    int sender;
    int receiver;
    int tag;
    std::vector<float> data;
  };
  const int size = static_cast<int>(GetParam().size());
  std::mt19937 random(7);
  const auto random_below = [](std::mt19937& generator, int limit) {
    return static_cast<int>(generator() % static_cast<unsigned>(limit));
  };
  std::vector<SentMessage> all_messages;
  for (int number = 0; number < 200; ++number) {
    const int sender = random_below(random, size);
    const int receiver = (sender + 1 + random_below(random, size - 1)) % size;
    const int count_limit = random_below(random, 4) == 0 ? 50'000 : 3'000;
    const auto count = static_cast<std::size_t>(random_below(random, count_limit));
    all_messages.push_back({sender, receiver, random_below(random, 3), std::vector<float>(count)});
    for (float& element : all_messages.back().data) element = static_cast<float>(random() % 1000);
  }
  run_job(GetParam(), {}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    std::mt19937 own_random(static_cast<unsigned>(rank));
    std::vector<std::vector<float>> memory(all_messages.size());
    // The numbers of the messages in order, for each peer, tag and direction.
    std::map<std::tuple<int, int, bool>, std::deque<std::size_t>> queues;
    for (std::size_t number = 0; number < all_messages.size(); ++number) {
      if (all_messages[number].sender == rank)
        queues[{all_messages[number].receiver, all_messages[number].tag, true}].push_back(number);
      if (all_messages[number].receiver == rank)
        queues[{all_messages[number].sender, all_messages[number].tag, false}].push_back(number);
    }
    std::vector<Handle> handles;
    while (!queues.empty()) {
      const auto queue =
          std::next(queues.begin(), random_below(own_random, static_cast<int>(queues.size())));
      const auto [peer, tag, sends] = queue->first;
      const std::size_t number = queue->second.front();
      queue->second.pop_front();
      if (queue->second.empty()) queues.erase(queue);
      memory[number] = all_messages[number].data;
      if (!sends) std::ranges::fill(memory[number], -1.0F);
      Submission submission =
          message(sends ? Operation::kSend : Operation::kReceive, peer, memory[number]);
      submission.tag = tag;
      submission.name += " number " + std::to_string(number);
      handles.push_back(engine.submit(submission).value());
      if (random_below(own_random, 20) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const Handle handle : handles) EXPECT_EQ(finish(engine, handle).status, Status());
    for (std::size_t number = 0; number < all_messages.size(); ++number) {
      if (all_messages[number].receiver != rank) continue;
      EXPECT_EQ(memory[number], all_messages[number].data) << number;
    }
    ASSERT_EQ(barrier(engine), Status());
  });
}

// Rank 0 receives from any rank, so it does not know which ranks will send. The senders end
// immediately after their sends. Their messages must still arrive.
TEST_P(EngineOnHosts, AReceiveFromAnyRankGetsMessagesOfRanksThatHaveLeft) {
  run_job(GetParam(), {}, [&](Engine& engine) {
    const int size = engine.topology().size;
    std::vector<float> memory(3, static_cast<float>(engine.topology().rank));
    if (engine.topology().rank != 0) {
      const auto handle = engine.submit(message(Operation::kSend, 0, memory));
      EXPECT_EQ(finish(engine, handle).status, Status());
      ASSERT_EQ(engine.shutdown("it has sent its message"), Status());
      return;
    }
    std::set<int> sources;
    for (int count = 1; count < size; ++count) {
      const auto handle = engine.submit(message(Operation::kReceive, kAnyRank, memory));
      const Outcome outcome = finish(engine, handle);
      ASSERT_EQ(outcome.status, Status());
      EXPECT_THAT(memory, testing::Each(static_cast<float>(outcome.source)));
      sources.insert(outcome.source);
    }
    EXPECT_EQ(sources.size(), static_cast<std::size_t>(size - 1));
    const auto handle = engine.submit(message(Operation::kReceive, kAnyRank, memory));
    const Status status = finish(engine, handle).status;
    EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
    EXPECT_THAT(status.message(), testing::HasSubstr("has left the job"));
  });
}

// Rank 0 receives the messages only after other calls. But on the connection, the frames of these
// calls come after the messages.
TEST_P(EngineOnHosts, ManyMessagesDoNotHoldUpOtherCalls) {
  run_job(GetParam(), {}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    const int last_rank = engine.topology().size - 1;
    std::vector<std::vector<float>> memory(300, std::vector<float>(3, static_cast<float>(rank)));
    std::vector<Handle> handles;
    const auto submit_all = [&](Operation operation, int peer) {
      for (auto& buffer : memory) {
        Submission submission = message(operation, peer, buffer);
        submission.name += " number " + std::to_string(handles.size());
        handles.push_back(engine.submit(submission).value());
      }
    };
    if (rank == last_rank) submit_all(Operation::kSend, 0);
    for (int count = 0; count < 10; ++count) ASSERT_EQ(barrier(engine), Status());
    if (rank == 0) submit_all(Operation::kReceive, last_rank);
    for (const Handle handle : handles) EXPECT_EQ(finish(engine, handle).status, Status());
    if (rank == 0) {
      EXPECT_THAT(memory, testing::Each(testing::Each(static_cast<float>(last_rank))));
    }
    ASSERT_EQ(barrier(engine), Status());
  });
}

// The last rank sends a message while rank 0 makes no call. Rank 0 must still connect to the last
// rank, so that the message is on its way before the last rank ends.
TEST_P(EngineOnHosts, ARankWithoutCallsConnects) {
  std::latch has_left(1);
  run_job(GetParam(), {}, [&](Engine& engine) {
    const int last_rank = engine.topology().size - 1;
    std::vector<float> memory(100, 7.0F);
    if (engine.topology().rank == last_rank) {
      const auto handle = engine.submit(message(Operation::kSend, 0, memory));
      EXPECT_EQ(finish(engine, handle).status, Status());
      ASSERT_EQ(engine.shutdown("it has sent its message"), Status());
      has_left.count_down();
    }
    has_left.wait();
    if (engine.topology().rank != 0) return;
    memory.assign(100, 0.0F);
    const auto handle = engine.submit(message(Operation::kReceive, last_rank, memory));
    EXPECT_EQ(finish(engine, handle).status, Status());
    EXPECT_THAT(memory, testing::Each(7.0F));
  });
}

// Ranks 0 and 3 have no channel, because the lanes connect only rank 0 with rank 2, and rank 1 with
// rank 3. So rank 0 learns only when it tries to connect that rank 3 has left.
TEST(EngineWithGroupsOnHosts, AMessageFromARankThatHasLeftFailsAlone) {
  std::latch has_left(1);
  run_job(HostOfRank{0, 0, 1, 1}, {{0, 1, 2}}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    if (rank == 3) {
      ASSERT_EQ(engine.shutdown("enough"), Status());
      has_left.count_down();
      return;
    }
    has_left.wait();
    std::vector<float> values(10, 1.0F);
    if (rank == 0) {
      const auto handle = engine.submit(message(Operation::kReceive, 3, values));
      const Outcome outcome = finish(engine, handle);
      EXPECT_EQ(outcome.status.code(), StatusCode::kRebuildGroup);
      EXPECT_THAT(outcome.status.message(), testing::HasSubstr("rank 3"));
      EXPECT_THAT(outcome.status.message(), testing::HasSubstr("cannot be reached"));
    }
    EXPECT_EQ(allreduce(engine, values, "", 1), Status());
    EXPECT_THAT(values, testing::Each(3.0F));
  });
}

// The average of host 0 is orthogonal to the input of host 1, so the two are added. The second
// tensor has several windows.
TEST(EngineWithHierarchicalAdasum, CombinesTheAveragesOfHosts) {
  const JobOnHosts job({0, 0, 1});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.size(); ++rank)
    threads.emplace_back([&, rank] {
      EngineOptions options = job.options(rank);
      options.hierarchical_adasum = true;
      const auto engine = value_or_abort(job.join(options));
      for (const std::size_t half_size : {1U, 500'000U}) {
        std::vector<float> values(2 * half_size, 0.0F);
        const auto middle = values.begin() + static_cast<std::ptrdiff_t>(half_size);
        if (rank == 2)
          std::fill(middle, values.end(), 1.0F);
        else
          std::fill(values.begin(), middle, rank == 0 ? 2.0F : 4.0F);
        Submission adasum = allreduce_of(values);
        adasum.reduce_op = ReduceOp::kAdasum;
        EXPECT_EQ(finish(*engine, engine->submit(std::move(adasum))).status, Status());
        EXPECT_TRUE(std::all_of(values.begin(), middle, [](float value) { return value == 3; }));
        EXPECT_TRUE(std::all_of(middle, values.end(), [](float value) { return value == 1; }));
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(EngineWithoutASecret, DoesNotConnectToOtherHosts) {
  const JobOnHosts job({0, 1});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.size(); ++rank)
    threads.emplace_back([&, rank] {
      const auto engine = job.join_without_secret(job.options(rank));
      EXPECT_EQ(engine.status().code(), StatusCode::kFixCall);
      EXPECT_THAT(engine.status().message(),
                  testing::HasSubstr("the ranks of this job are on 2 hosts"));
      EXPECT_THAT(engine.status().message(), testing::HasSubstr("do not share a job secret"));
    });
  for (auto& thread : threads) thread.join();
}

// The members of a group that is added later connect when the group is added.
TEST(EngineWithGroupsOnHosts, AGroupIsAddedLater) {
  run_job(HostOfRank{0, 0, 1, 2}, {}, [&](Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      const auto group = engine.add_group({1, 2, 3});
      ASSERT_EQ(group.status(), Status());
      if (engine.topology().rank > 0) {
        std::vector<float> values(100'000, 2.0F);
        ASSERT_EQ(allreduce(engine, values, "", *group), Status());
        ASSERT_EQ(values.front(), 6.0F);
      }
      ASSERT_EQ(engine.remove_group(*group), Status());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, EngineOnHosts,
                         testing::Values(HostOfRank{0, 1}, HostOfRank{0, 0, 1, 1},
                                         HostOfRank{0, 0, 0, 1}, HostOfRank{0, 1, 2, 3},
                                         HostOfRank{0, 1, 0, 1, 0}),
                         [](const auto& instance) { return hosts_name(instance.param); });

}  // namespace
}  // namespace farandole
