// Engines of jobs on several hosts.
#include <gmock/gmock.h>

#include <numeric>

#include "engine/hosts_in_test.h"

namespace farandole {
namespace {

class EngineOnHosts : public testing::TestWithParam<HostOfRank> {};

TEST_P(EngineOnHosts, AddsUpOverAllHosts) {
  const int size = static_cast<int>(GetParam().size());
  run_job(GetParam(), {}, [&](Engine& engine) {
    EXPECT_EQ(engine.topology().size, size);
    for (const std::size_t count : {1, 100, 5000, 300'000}) {
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
      for (int turn = 0; turn < kCalls; ++turn) {
        const int call = (turn + engine.topology().rank * (round % 3)) % kCalls;
        auto& own = values[static_cast<std::size_t>(call)];
        own.assign(10, static_cast<float>(call));
        handles[static_cast<std::size_t>(call)] =
            engine.submit(allreduce_of(own, "call " + std::to_string(call)));
      }
      for (int call = 0; call < kCalls; ++call) {
        ASSERT_EQ(finish(engine, handles[static_cast<std::size_t>(call)]).status, Status());
        ASSERT_THAT(values[static_cast<std::size_t>(call)],
                    testing::Each(static_cast<float>(call * size)));
      }
    }
  });
}

// Every rank leaves as soon as its own last call is done, while data for others may be on its way.
TEST_P(EngineOnHosts, LeavesRightAfterTheLastCall) {
  const int size = static_cast<int>(GetParam().size());
  for (int round = 0; round < 10; ++round) {
    run_job(GetParam(), {}, [&](Engine& engine) {
      for (const std::size_t count : {1, 200'000}) {
        std::vector<float> values(count, 1.0F);
        ASSERT_EQ(allreduce(engine, values), Status());
        ASSERT_EQ(values.back(), static_cast<float>(size));
      }
    });
  }
}

// One rank leaves without the call that the others make. Their error names it, on all hosts.
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

// Some groups have members on one host only, and go on when another group has ended.
TEST(EngineWithGroupsOnHosts, AGroupOnOneHostGoesOn) {
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

// Every rank sends to every other rank, and receives from it. Messages between hosts are an error
// on both ranks, however late the other one is.
TEST_P(EngineOnHosts, MessagesArriveOnTheirHostAndAreAnErrorBetweenHosts) {
  const HostOfRank& hosts = GetParam();
  run_job(hosts, {}, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    const auto host_of = [&](int of) { return hosts[static_cast<std::size_t>(of)]; };
    for (int peer = 0; peer < engine.topology().size; ++peer) {
      if (peer == rank) continue;
      std::vector<float> sent(5, static_cast<float>(rank));
      std::vector<float> received(5, -1.0F);
      Submission send;
      send.operation = Operation::kSend;
      send.name = "send";
      send.dtype = DType::kFloat32;
      send.shape = {5};
      send.input = sent.data();
      send.peer = peer;
      Submission receive = send;
      receive.operation = Operation::kReceive;
      receive.name = "receive";
      receive.input = receive.output = received.data();
      const auto sending = engine.submit(send);
      const Status receiving = finish(engine, engine.submit(receive)).status;
      const bool is_here = host_of(peer) == host_of(rank);
      for (const Status& status : {finish(engine, sending).status, receiving}) {
        EXPECT_EQ(status.code(), is_here ? StatusCode::kOk : StatusCode::kFixCall);
        EXPECT_THAT(status.message(),
                    testing::HasSubstr(is_here ? "" : "only between ranks on one host so far"));
      }
      EXPECT_THAT(received, testing::Each(is_here ? static_cast<float>(peer) : -1.0F));
    }
    ASSERT_EQ(barrier(engine), Status());
  });
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
                         [](const auto& instance) { return shape_text(instance.param); });

}  // namespace
}  // namespace farandole
