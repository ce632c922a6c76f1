// Completions: the completion of each call runs once, however the call ends, even if no thread
// waits.
#include "engine/completions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "base/format.h"
#include "engine/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

// How many calls each thread makes. FARANDOLE_TEST_CALLS sets the total number, for a long run.
int calls_per_thread(int threads) {
  const char* const total_calls = std::getenv("FARANDOLE_TEST_CALLS");
  return (total_calls == nullptr ? 20'000 : std::atoi(total_calls)) / threads;
}

// A call with a completion. The completion takes the outcome and counts how often it has run.
struct CountedCall {
  explicit CountedCall(Engine& owner) : engine(owner) {}

  Completion completion() { return {.function = &CountedCall::on_completion, .context = this}; }
  void wait() { done.wait(); }

  static void on_completion(void* context, Handle handle) noexcept {
    auto& call = *static_cast<CountedCall*>(context);
    call.status = call.engine.take(handle).status;
    ++call.run_count;
    call.done.count_down();
  }

  Engine& engine;
  std::vector<float> values = {0};
  Status status = Status::stop("the completion has not run");
  std::atomic<int> run_count = 0;
  std::latch done{1};
};

Submission counted_allreduce(CountedCall& call, std::string name = "") {
  Submission submission = allreduce_of(call.values, std::move(name));
  submission.completion = call.completion();
  return submission;
}

TEST(Completions, RunWithoutAWaitingThread) {
  run_job(3, {}, [](Engine& engine) {
    for (int iteration = 0; iteration < 200; ++iteration) {
      CountedCall call(engine);
      call.values = {static_cast<float>(engine.topology().rank + iteration)};
      ASSERT_TRUE(engine.submit(counted_allreduce(call, "call")).ok());
      call.wait();
      ASSERT_EQ(call.status, Status());
      ASSERT_EQ(call.values[0], static_cast<float>(3 * iteration + 3));
      ASSERT_EQ(call.run_count, 1);
    }
  });
}

// A chain of calls: each completion submits the next call, as an asynchronous operation of a
// framework may do.
class CallChain {
 public:
  CallChain(Engine& engine, int number, int calls)
      : engine_(engine), name_(format_text("chain.{}", number)), calls_(calls) {}

  void start() { submit(); }
  void wait() { done_.wait(); }

 private:
  static void on_completion(void* context, Handle handle) noexcept {
    static_cast<CallChain*>(context)->submit_next(handle);
  }

  void submit() {
    values_.assign(4, static_cast<float>(engine_.topology().rank + calls_done_ % 1000));
    Submission submission = allreduce_of(values_, name_);
    submission.completion = {.function = &CallChain::on_completion, .context = this};
    const auto handle = engine_.submit(submission);
    if (handle.ok()) return;
    ADD_FAILURE() << handle.status().message();
    done_.count_down();
  }

  void submit_next(Handle handle) {
    const Status status = engine_.take(handle).status;
    EXPECT_EQ(status, Status());
    const auto expected = static_cast<float>(2 * (calls_done_ % 1000) + 1);
    for (const float value : values_) EXPECT_EQ(value, expected);
    if (!status.ok() || ++calls_done_ == calls_) return done_.count_down();
    submit();
  }

  Engine& engine_;
  const std::string name_;
  const int calls_;
  int calls_done_ = 0;
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
          CallChain call_chain(engine, number, calls);
          call_chain.start();
          return call_chain.wait();
        }
        for (int iteration = 0; iteration < calls; ++iteration) {
          std::vector<float> values = {static_cast<float>(iteration % 1000)};
          ASSERT_EQ(allreduce(engine, values, format_text("thread.{}", number)), Status());
          ASSERT_EQ(values[0], static_cast<float>(2 * (iteration % 1000)));
        }
      });
    for (auto& thread : threads) thread.join();
  });
}

TEST(Completions, RunForEachCallOfABatch) {
  run_job(2, {}, [](Engine& engine) {
    CountedCall first(engine);
    CountedCall second(engine);
    first.values = {1};
    second.values = {2};
    const std::vector<Submission> batch = {counted_allreduce(first), counted_allreduce(second)};
    ASSERT_TRUE(engine.submit_batch(batch, kTestTimeout).ok());
    first.wait();
    second.wait();
    EXPECT_EQ(first.values[0], 2);
    EXPECT_EQ(second.values[0], 4);
    EXPECT_EQ(first.run_count + second.run_count, 2);
  });
}

TEST(Completions, RunOnceForAFailedCall) {
  run_job(2, {}, [](Engine& engine) {
    CountedCall call(engine);
    if (engine.topology().rank == 1) {
      (void)engine.shutdown("enough");
      const auto rejected = engine.submit(counted_allreduce(call));
      EXPECT_FALSE(rejected.ok());
      EXPECT_EQ(call.run_count, 0);  // no call was made, so no completion runs
      return;
    }
    const auto handle = engine.submit(counted_allreduce(call));
    if (handle.ok()) {
      call.wait();
      EXPECT_EQ(call.status.code(), StatusCode::kRebuildGroup);
      EXPECT_THAT(call.status.message(), HasSubstr("enough"));
    }
    (void)engine.shutdown("done");
    EXPECT_EQ(call.run_count, handle.ok() ? 1 : 0);
  });
}

TEST(Completions, RunAtShutdownForCallsInFlight) {
  run_job(2, {}, [](Engine& engine) {
    if (engine.topology().rank == 1) return (void)barrier(engine);
    CountedCall call(engine);
    ASSERT_TRUE(engine.submit(counted_allreduce(call, "only here")).ok());
    (void)barrier(engine);
    (void)engine.shutdown("done");
    EXPECT_EQ(call.run_count, 1);
    EXPECT_EQ(call.status.code(), StatusCode::kRebuildGroup);
  });
}

TEST(Completions, RunWithAnUnknownHandleForADroppedCall) {
  run_job(2, {}, [](Engine& engine) {
    CountedCall call(engine);
    if (engine.topology().rank == 1) {
      ASSERT_EQ(barrier(engine), Status());
    }
    const auto handle = engine.submit(counted_allreduce(call, "dropped"));
    ASSERT_TRUE(handle.ok());
    if (engine.topology().rank == 0) {
      engine.drop(*handle);  // the call is still in flight: rank 1 submits after the barrier
      ASSERT_EQ(barrier(engine), Status());
    }
    call.wait();
    EXPECT_EQ(call.run_count, 1);
    EXPECT_EQ(call.status.code(),
              engine.topology().rank == 0 ? StatusCode::kFixCall : StatusCode::kOk);
  });
}

TEST(Completions, BlockingCallsAreRejectedInACompletion) {
  struct CompletionContext {
    Engine* engine = nullptr;
    std::vector<Status> statuses;
    bool wait_result = true;
    Result<Handle> inner_handle = Status::stop("not submitted");
    std::vector<float> values = {1};
    std::latch done{1};
  };
  run_job(2, {}, [](Engine& engine) {
    CompletionContext completion_context;
    completion_context.engine = &engine;
    Submission submission;
    submission.completion = {
        .function =
            [](void* context, Handle) noexcept {
              auto& own_context = *static_cast<CompletionContext*>(context);
              Engine& own_engine = *own_context.engine;
              own_context.inner_handle =
                  own_engine.submit(allreduce_of(own_context.values, "inside"), kTestTimeout);
              if (own_context.inner_handle.ok())
                own_context.wait_result = own_engine.wait(*own_context.inner_handle, kTestTimeout);
              own_context.statuses = {
                  Engine::create({}).status(), own_engine.add_group({0, 1}).status(),
                  own_engine.remove_group(1),  own_engine.start_timeline("trace.json"),
                  own_engine.stop_timeline(),  own_engine.shutdown("from inside")};
              own_context.done.count_down();
            },
        .context = &completion_context};
    ASSERT_TRUE(engine.submit(submission).ok());
    completion_context.done.wait();
    for (const Status& status : completion_context.statuses) {
      EXPECT_EQ(status.code(), StatusCode::kFixCall);
      EXPECT_THAT(status.message(), HasSubstr("was called from the completion of a call, which "
                                              "must not block; call it from another thread"));
    }
    EXPECT_EQ(completion_context.statuses.size(), 6u);
    EXPECT_FALSE(completion_context.wait_result);
    EXPECT_EQ(finish(engine, completion_context.inner_handle).status, Status());
    EXPECT_EQ(completion_context.values[0], 2);
  });
}

}  // namespace
}  // namespace farandole
