// Completions: each call is told of once, however it ends, and nobody has to wait for it.
#include "engine/completions.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "engine/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

// Calls over all tests of this kind; more on record: FARANDOLE_TEST_CALLS=1000000.
int calls_per_thread(int threads) {
  const char* const calls = std::getenv("FARANDOLE_TEST_CALLS");
  return (calls == nullptr ? 20'000 : std::atoi(calls)) / threads;
}

// A call of its own: counts how often it is told of, and takes its outcome there.
struct Told {
  explicit Told(Engine& owner) : engine(owner) {}

  Completion completion() { return {.function = &Told::is_done, .context = this}; }
  void wait() { done.wait(); }

  static void is_done(void* context, Handle handle) noexcept {
    auto& told = *static_cast<Told*>(context);
    told.status = told.engine.take(handle).status;
    ++told.times;
    told.done.count_down();
  }

  Engine& engine;
  std::vector<float> values = {0};
  Status status = Status::stop("nobody has told");
  std::atomic<int> times = 0;
  std::latch done{1};
};

Submission told_allreduce(Told& told, std::string name = "") {
  Submission submission = allreduce_of(told.values, std::move(name));
  submission.completion = told.completion();
  return submission;
}

TEST(Completions, NobodyNeedsToWait) {
  run_job(3, {}, [](Engine& engine) {
    for (int turn = 0; turn < 200; ++turn) {
      Told told(engine);
      told.values = {static_cast<float>(engine.topology().rank + turn)};
      ASSERT_TRUE(engine.submit(told_allreduce(told, "call")).ok());
      told.wait();
      ASSERT_EQ(told.status, Status());
      ASSERT_EQ(told.values[0], static_cast<float>(3 * turn + 3));
      ASSERT_EQ(told.times, 1);
    }
  });
}

// Submits its next call from inside the completion of the last one, as a framework's operation
// does.
class Chain {
 public:
  Chain(Engine& engine, int number, int calls)
      : engine_(engine), name_(fmt::format("chain.{}", number)), calls_(calls) {}

  void start() { submit(); }
  void wait() { done_.wait(); }

 private:
  static void is_done(void* context, Handle handle) noexcept {
    static_cast<Chain*>(context)->go_on(handle);
  }

  void submit() {
    values_.assign(4, static_cast<float>(engine_.topology().rank + turn_ % 1000));
    Submission submission = allreduce_of(values_, name_);
    submission.completion = {.function = &Chain::is_done, .context = this};
    const auto handle = engine_.submit(submission);
    if (handle.ok()) return;
    ADD_FAILURE() << handle.status().message();
    done_.count_down();
  }

  void go_on(Handle handle) {
    const Status status = engine_.take(handle).status;
    EXPECT_EQ(status, Status());
    const auto expected = static_cast<float>(2 * (turn_ % 1000) + 1);
    for (const float value : values_) EXPECT_EQ(value, expected);
    if (!status.ok() || ++turn_ == calls_) return done_.count_down();
    submit();
  }

  Engine& engine_;
  const std::string name_;
  const int calls_;
  int turn_ = 0;
  std::vector<float> values_;
  std::latch done_{1};
};

TEST(Completions, ChainsOfCallsRunWhileOtherThreadsWait) {
  constexpr int kThreads = 8;
  const int calls = calls_per_thread(kThreads);
  run_job(2, {}, [calls](Engine& engine) {
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; ++number)
      threads.emplace_back([&engine, number, calls] {
        if (number % 2 == 0) {
          Chain chain(engine, number, calls);
          chain.start();
          return chain.wait();
        }
        for (int turn = 0; turn < calls; ++turn) {
          std::vector<float> values = {static_cast<float>(turn % 1000)};
          ASSERT_EQ(allreduce(engine, values, fmt::format("thread.{}", number)), Status());
          ASSERT_EQ(values[0], static_cast<float>(2 * (turn % 1000)));
        }
      });
    for (auto& thread : threads) thread.join();
  });
}

TEST(Completions, EachCallOfABatchIsToldOf) {
  run_job(2, {}, [](Engine& engine) {
    Told first(engine);
    Told second(engine);
    first.values = {1};
    second.values = {2};
    const std::vector<Submission> batch = {told_allreduce(first), told_allreduce(second)};
    ASSERT_TRUE(engine.submit_batch(batch, kHangGuard).ok());
    first.wait();
    second.wait();
    EXPECT_EQ(first.values[0], 2);
    EXPECT_EQ(second.values[0], 4);
    EXPECT_EQ(first.times + second.times, 2);
  });
}

TEST(Completions, AFailedCallIsToldOfOnce) {
  run_job(2, {}, [](Engine& engine) {
    Told told(engine);
    if (engine.topology().rank == 1) {
      (void)engine.shutdown("enough");
      const auto rejected = engine.submit(told_allreduce(told));
      EXPECT_FALSE(rejected.ok());
      EXPECT_EQ(told.times, 0);  // there is no call
      return;
    }
    const auto handle = engine.submit(told_allreduce(told));
    if (handle.ok()) {
      told.wait();
      EXPECT_EQ(told.status.code(), StatusCode::kRebuildGroup);
      EXPECT_THAT(told.status.message(), HasSubstr("enough"));
    }
    (void)engine.shutdown("done");
    EXPECT_EQ(told.times, handle.ok() ? 1 : 0);
  });
}

TEST(Completions, ShutdownTellsOfWhatIsInFlight) {
  run_job(2, {}, [](Engine& engine) {
    if (engine.topology().rank == 1) return (void)barrier(engine);
    Told told(engine);
    ASSERT_TRUE(engine.submit(told_allreduce(told, "only here")).ok());
    (void)barrier(engine);
    (void)engine.shutdown("done");
    EXPECT_EQ(told.times, 1);
    EXPECT_EQ(told.status.code(), StatusCode::kRebuildGroup);
  });
}

TEST(Completions, ADroppedCallIsToldOfWithAHandleThatIsUnknown) {
  run_job(2, {}, [](Engine& engine) {
    Told told(engine);
    if (engine.topology().rank == 1) {
      ASSERT_EQ(barrier(engine), Status());
    }
    const auto handle = engine.submit(told_allreduce(told, "dropped"));
    ASSERT_TRUE(handle.ok());
    if (engine.topology().rank == 0) {
      engine.drop(*handle);  // not done: the other rank comes after the barrier
      ASSERT_EQ(barrier(engine), Status());
    }
    told.wait();
    EXPECT_EQ(told.times, 1);
    EXPECT_EQ(told.status.code(),
              engine.topology().rank == 0 ? StatusCode::kFixCall : StatusCode::kOk);
  });
}

TEST(Completions, NothingBlocksInside) {
  struct Inside {
    Engine* engine = nullptr;
    std::vector<Status> statuses;
    bool waited = true;
    Result<Handle> second = Status::stop("not submitted");
    std::vector<float> values = {1};
    std::latch done{1};
  };
  run_job(2, {}, [](Engine& engine) {
    Inside inside;
    inside.engine = &engine;
    Submission submission;
    submission.completion = {
        .function =
            [](void* context, Handle) noexcept {
              auto& all = *static_cast<Inside*>(context);
              Engine& own = *all.engine;
              all.second = own.submit(allreduce_of(all.values, "inside"), kHangGuard);
              if (all.second.ok()) all.waited = own.wait(*all.second, kHangGuard);
              all.statuses = {Engine::create({}).status(), own.add_group({0, 1}).status(),
                              own.remove_group(1),         own.start_timeline("trace.json"),
                              own.stop_timeline(),         own.shutdown("from inside")};
              all.done.count_down();
            },
        .context = &inside};
    ASSERT_TRUE(engine.submit(submission).ok());
    inside.done.wait();
    for (const Status& status : inside.statuses) {
      EXPECT_EQ(status.code(), StatusCode::kFixCall);
      EXPECT_THAT(status.message(), HasSubstr("was called from the completion of a call, which "
                                              "must not block; call it from another thread"));
    }
    EXPECT_EQ(inside.statuses.size(), 6u);
    EXPECT_FALSE(inside.waited);
    EXPECT_EQ(finish(engine, inside.second).status, Status());
    EXPECT_EQ(inside.values[0], 2);
  });
}

}  // namespace
}  // namespace farandole
