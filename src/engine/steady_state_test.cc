// Tests the agreement in whole engines. Calls may be submitted in any order; a program that repeats
// its calls needs no messages; a wrong prediction loses no call and writes no output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "engine/spied_group_in_test.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::size_t kSmallBucketBytes = 16'384;

struct Tensors {
  std::vector<std::vector<float>> values;

  explicit Tensors(int count) {
    for (int t = 0; t < count; ++t)
      values.emplace_back(static_cast<std::size_t>(1 + 97 * t), static_cast<float>(t + 1));
  }
};

// One iteration of a training loop: submits all tensors in this rank's own random order, and then
// waits for all.
void iterate(Engine& engine, int tensors, std::mt19937& random, GroupId group = kWorld) {
  Tensors tensor_set(tensors);
  std::vector<std::size_t> order(tensor_set.values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  std::vector<Handle> handles(order.size());
  for (const std::size_t t : order) {
    const auto handle =
        engine.submit(allreduce_of(tensor_set.values[t], "t" + std::to_string(t), group));
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    handles[t] = *handle;
  }
  const auto members = static_cast<float>(engine.ranks_of(group).size());
  for (std::size_t t = 0; t < handles.size(); ++t) {
    ASSERT_TRUE(engine.wait(handles[t], kTestTimeout));
    ASSERT_EQ(engine.take(handles[t]).status, Status());
    ASSERT_EQ(tensor_set.values[t].back(), members * static_cast<float>(t + 1));
  }
}

TEST(SteadyState, BlockingCallsInTheSameOrderSendNoMessages) {
  constexpr int kSize = 3;
  std::barrier<> all_ranks(kSize);
  run_spied_job(kSize, kSmallBucketBytes, [&](Engine& engine, const GroupSpy& spy) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> values(static_cast<std::size_t>(1 + round % 5), 1.0F);
      ASSERT_EQ(allreduce(engine, values), Status());
      ASSERT_EQ(barrier(engine), Status());
    }
    all_ranks.arrive_and_wait();
    EXPECT_EQ(spy.message_bytes(), 0U);
    all_ranks.arrive_and_wait();
  });
}

class InAnyOrder : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, InAnyOrder, ::testing::Values(2, 3, 4));

// A rank that gets no core for longer than the grace time may raise a replan. So the test only
// requires that one of many series of iterations sends no messages.
TEST_P(InAnyOrder, ALearnedLoopSendsNoMessages) {
  const int size = GetParam();
  std::barrier<> all_ranks(size);
  run_spied_job(size, kSmallBucketBytes, [&](Engine& engine, const GroupSpy& spy) {
    constexpr int kTensors = 20;
    constexpr int kIterations = 20;
    std::mt19937 random(static_cast<unsigned>(engine.topology().rank));
    bool series_was_silent = false;
    std::uint32_t steps = 0;
    for (int series = 0; series < 200 && !series_was_silent; ++series) {
      all_ranks.arrive_and_wait();
      const std::uint64_t bytes_before = spy.message_bytes();
      const std::uint32_t steps_before = spy.step_count();
      all_ranks.arrive_and_wait();
      for (int iteration = 0; iteration < kIterations; ++iteration)
        iterate(engine, kTensors, random);
      all_ranks.arrive_and_wait();
      series_was_silent = spy.message_bytes() == bytes_before;
      steps = spy.step_count() - steps_before;
    }
    EXPECT_TRUE(series_was_silent);
    EXPECT_GT(spy.message_bytes(), 0U);
    EXPECT_LT(steps, kIterations * kTensors) << "nothing was fused";
  });
}

// Each rank predicts a step that the other rank has not submitted. Neither rank writes any output,
// and both ranks run the rolled-back steps later.
TEST(Replan, ARolledBackStepLeavesItsOutputsUntouched) {
  constexpr int kSize = 2;
  std::barrier<> all_ranks(kSize);
  run_spied_job(kSize, 1 << 20, [&](Engine& engine, const GroupSpy&) {
    const int rank = engine.topology().rank;
    for (const bool in_batches : {true, false}) {
      std::vector<std::vector<float>> values(4, std::vector<float>(30'000, 1.0F));
      const auto submit = [&](int half) {
        std::vector<Submission> calls;
        for (const int t : {2 * half, 2 * half + 1})
          calls.push_back(
              allreduce_of(values[static_cast<std::size_t>(t)], "t" + std::to_string(t)));
        if (in_batches) return engine.submit_batch(calls).value();
        return std::vector{engine.submit(calls[0]).value(), engine.submit(calls[1]).value()};
      };
      auto handles = submit(rank);
      const auto expect_no_completion = [&] {
        for (const Handle handle : handles) EXPECT_FALSE(engine.wait(handle, milliseconds(50)));
      };
      expect_no_completion();
      for (const auto& tensor : values)
        EXPECT_EQ(std::ranges::count(tensor, 1.0F), std::ssize(tensor));
      // wait() takes the progress lock, so the engine's later writes come after the reads above.
      expect_no_completion();
      all_ranks.arrive_and_wait();
      for (const Handle handle : submit(1 - rank)) handles.push_back(handle);
      for (const Handle handle : handles) {
        EXPECT_TRUE(engine.wait(handle, kTestTimeout));
        EXPECT_EQ(engine.take(handle).status, Status());
      }
      for (const auto& tensor : values)
        EXPECT_EQ(std::ranges::count(tensor, static_cast<float>(kSize)), std::ssize(tensor));
    }
  });
}

struct GroupCall {
  std::string name;
  GroupId group = kWorld;
  std::vector<float> values;
  Handle handle = 0;
};

// Five calls in every group of this rank, in this rank's own order.
std::vector<GroupCall> calls_of(const Engine& engine, GroupId groups, std::mt19937& random) {
  std::vector<GroupCall> calls;
  for (GroupId group = 0; group < groups; ++group)
    for (int t = 0; t < 5; ++t)
      calls.push_back({"t" + std::to_string(t), group, std::vector<float>(100, 1.0F)});
  std::erase_if(calls, [&](const GroupCall& call) {
    return std::ranges::count(engine.ranks_of(call.group), engine.topology().rank) == 0;
  });
  std::ranges::shuffle(calls, random);
  return calls;
}

TEST(Replan, OverlappingGroupsMayBeUsedInDifferentOrders) {
  const std::vector<std::vector<int>> groups = {{0, 1}, {1, 2}, {0, 2}};
  run_job(3, groups, [](Engine& engine) {
    std::mt19937 random(static_cast<unsigned>(engine.topology().rank) + 7);
    for (int round = 0; round < 40; ++round) {
      std::vector<GroupCall> calls = calls_of(engine, 4, random);
      for (GroupCall& call : calls)
        call.handle = engine.submit(allreduce_of(call.values, call.name, call.group)).value();
      std::ranges::shuffle(calls, random);
      for (const GroupCall& call : calls) {
        ASSERT_TRUE(engine.wait(call.handle, kTestTimeout));
        ASSERT_EQ(engine.take(call.handle).status, Status());
        ASSERT_EQ(call.values.back(), call.group == kWorld ? 3.0F : 2.0F);
      }
    }
  });
}

// Members that follow a plan send no announcements that the coordinator could compare. So a
// mismatch first becomes a misprediction.
TEST(Replan, AMismatchInAPlanIsAnErrorOnEveryRankAndTheJobGoesOn) {
  constexpr int kSize = 3;
  run_spied_job(kSize, kSmallBucketBytes, [](Engine& engine, const GroupSpy&) {
    const int rank = engine.topology().rank;
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int iteration = 0; iteration < 20; ++iteration) iterate(engine, 6, random);
    for (int iteration = 0; iteration < 3; ++iteration) {
      Tensors tensor_set(6);
      std::vector<Handle> handles;
      for (std::size_t t = 0; t < 6; ++t) {
        Submission call = allreduce_of(tensor_set.values[t], "t" + std::to_string(t));
        if (t == 2 && rank == 1) call.dtype = DType::kInt32;
        if (t == 4 && rank == 2) call.prescale = std::numeric_limits<double>::infinity();
        handles.push_back(engine.submit(call).value());
      }
      for (std::size_t t = 0; t < 6; ++t) {
        ASSERT_TRUE(engine.wait(handles[t], kTestTimeout));
        const Status status = engine.take(handles[t]).status;
        if (t == 4) {
          ASSERT_EQ(status, Status::fix_call("rank 2: allreduce `t4` got the prescale factor inf "
                                             "and the postscale factor 1; both must be finite"));
          ASSERT_EQ(tensor_set.values[t].back(), 5.0F);
          continue;
        }
        if (t != 2) {
          ASSERT_EQ(status, Status());
          ASSERT_EQ(tensor_set.values[t].back(), kSize * static_cast<float>(t + 1));
          continue;
        }
        ASSERT_EQ(status.code(), StatusCode::kFixCall);
        EXPECT_THAT(status.message(), HasSubstr("`t2`"));
        EXPECT_THAT(status.message(), HasSubstr("int32"));
        EXPECT_THAT(status.message(), HasSubstr("float32"));
        ASSERT_EQ(tensor_set.values[t].back(), 3.0F);
      }
    }
    for (int iteration = 0; iteration < 20; ++iteration) iterate(engine, 6, random);
  });
}

// Ranks have different amounts of data and join: once before the group has learned a plan, and once
// after it has.
TEST(Replan, RanksMayJoinBeforeAndAfterAPlanIsLearned) {
  constexpr int kSize = 3;
  run_spied_job(kSize, kSmallBucketBytes, [](Engine& engine, const GroupSpy&) {
    const int rank = engine.topology().rank;
    std::mt19937 random(static_cast<unsigned>(rank));
    for (const int iterations : {0, 20, 3}) {
      for (int iteration = 0; iteration < iterations; ++iteration) iterate(engine, 6, random);
      for (int extra_step = 0; extra_step < rank; ++extra_step) {
        std::vector<float> values(1000, 1.0F);
        ASSERT_EQ(allreduce(engine, values, "t3"), Status());
        ASSERT_EQ(values.back(), static_cast<float>(kSize - 1 - extra_step));
      }
      Submission join;
      join.operation = Operation::kJoin;
      const Outcome outcome = finish(engine, engine.submit(join));
      ASSERT_EQ(outcome.status, Status());
      ASSERT_EQ(outcome.last_joined, kSize - 1);
    }
  });
}

}  // namespace
}  // namespace farandole
