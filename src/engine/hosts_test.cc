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

INSTANTIATE_TEST_SUITE_P(Shapes, EngineOnHosts,
                         testing::Values(HostOfRank{0, 1}, HostOfRank{0, 0, 1, 1},
                                         HostOfRank{0, 0, 0, 1}, HostOfRank{0, 1, 2, 3},
                                         HostOfRank{0, 1, 0, 1, 0}),
                         [](const auto& instance) { return shape_text(instance.param); });

}  // namespace
}  // namespace farandole
