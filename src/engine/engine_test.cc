// Tests whole engines in one process: every rank is a thread, and all ranks share one MemoryStore.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <numeric>
#include <random>
#include <thread>

#include "engine/job_in_test.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class EngineOfSize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineOfSize, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(EngineOfSize, AllreduceSumsOverAllRanks) {
  const int size = GetParam();
  run_job(size, {}, [size](Engine& engine) {
    for (const std::size_t count : {0ul, 1ul, 1000ul, 300'000ul}) {
      std::vector<float> values(count, static_cast<float>(engine.topology().rank + 1));
      ASSERT_EQ(allreduce(engine, values), Status());
      const float expected = static_cast<float>(size * (size + 1) / 2);
      ASSERT_TRUE(std::all_of(values.begin(), values.end(),
                              [&](float value) { return value == expected; }));
    }
  });
}

TEST_P(EngineOfSize, AllgatherTakesUnevenAndEmptyParts) {
  const int size = GetParam();
  run_job(size, {}, [size](Engine& engine) {
    const int rank = engine.topology().rank;
    std::vector<std::int32_t> part(static_cast<std::size_t>(2 * rank), rank);  // `rank` rows of 2
    Submission submission;
    submission.operation = Operation::kAllgather;
    submission.dtype = DType::kInt32;
    submission.shape = {rank, 2};
    submission.input = part.data();
    const Outcome outcome = finish(engine, engine.submit(submission));
    ASSERT_EQ(outcome.status, Status());
    std::vector<std::int64_t> rows(static_cast<std::size_t>(size));
    std::iota(rows.begin(), rows.end(), 0);
    ASSERT_EQ(outcome.received_rows, rows);
    const auto* values = reinterpret_cast<const std::int32_t*>(outcome.received.get());
    for (int other_rank = 0; other_rank < size; ++other_rank)
      for (int i = 0; i < 2 * other_rank; ++i) ASSERT_EQ(*values++, other_rank);
  });
}

TEST_P(EngineOfSize, BroadcastWorksFromEveryRoot) {
  const int size = GetParam();
  run_job(size, {}, [size](Engine& engine) {
    for (int root = 0; root < size; ++root) {
      std::vector<double> values(70'000, engine.topology().rank == root ? root + 0.5 : -1.0);
      Submission submission;
      submission.operation = Operation::kBroadcast;
      submission.dtype = DType::kFloat64;
      submission.shape = {70'000};
      submission.input = values.data();
      submission.output = values.data();
      submission.root_rank = root;
      ASSERT_EQ(finish(engine, engine.submit(submission)).status, Status());
      ASSERT_EQ(values.front(), root + 0.5);
      ASSERT_EQ(values.back(), root + 0.5);
    }
  });
}

TEST_P(EngineOfSize, ManyCallsCompleteInAnyOrder) {
  const int size = GetParam();
  run_job(size, {}, [size](Engine& engine) {
    constexpr int kTensors = 60;
    std::mt19937 random(static_cast<unsigned>(engine.topology().rank));
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> values;
      for (int t = 0; t < kTensors; ++t)
        values.emplace_back(static_cast<std::size_t>(1 + 97 * t), static_cast<float>(t));
      std::vector<int> order(kTensors);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Handle> handles(kTensors);
      for (const int t : order) {
        const auto handle = engine.submit(
            allreduce_of(values[static_cast<std::size_t>(t)], "t" + std::to_string(t)));
        ASSERT_TRUE(handle.ok()) << handle.status().message();
        handles[static_cast<std::size_t>(t)] = *handle;
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const int t : order) {
        const auto index = static_cast<std::size_t>(t);
        ASSERT_TRUE(engine.wait(handles[index], kTestTimeout));
        ASSERT_EQ(engine.take(handles[index]).status, Status());
        ASSERT_EQ(values[index].back(), static_cast<float>(t * size));
      }
    }
  });
}

// Each rank begins with a different group, and waits for its calls in its own order. With blocking
// calls, this program would deadlock.
TEST(Engine, OverlappingGroupsMayBeUsedInDifferentOrders) {
  const std::vector<std::vector<int>> groups = {{0, 1}, {1, 2}, {0, 2}};
  run_job(3, groups, [&](Engine& engine) {
    const int rank = engine.topology().rank;
    for (int round = 0; round < 50; ++round) {
      std::vector<std::vector<float>> values(
          3, std::vector<float>(150'000, 1.0F + static_cast<float>(rank)));
      std::vector<std::pair<std::size_t, Handle>> started_calls;
      for (std::size_t k = 0; k < 3; ++k) {
        const std::size_t g = (static_cast<std::size_t>(rank) + k) % 3;
        if (std::count(groups[g].begin(), groups[g].end(), rank) == 0) continue;
        const auto handle = engine.submit(allreduce_of(values[g], "", static_cast<GroupId>(g + 1)));
        ASSERT_TRUE(handle.ok()) << handle.status().message();
        started_calls.emplace_back(g, *handle);
      }
      for (const auto& [g, handle] : started_calls) {
        ASSERT_EQ(finish(engine, handle).status, Status());
        ASSERT_EQ(values[g].back(), static_cast<float>(2 + groups[g][0] + groups[g][1]));
      }
    }
  });
}

TEST(Engine, AMismatchIsAnErrorOnAllRanksAndTheJobGoesOn) {
  run_job(3, {}, [](Engine& engine) {
    std::vector<float> values(engine.topology().rank == 1 ? 7 : 5, 1.0F);
    const Status status = allreduce(engine, values, "weights");
    EXPECT_EQ(status.code(), StatusCode::kFixCall);
    EXPECT_THAT(status.message(), HasSubstr("`weights`"));
    EXPECT_THAT(status.message(), HasSubstr("[7]"));
    EXPECT_THAT(status.message(), HasSubstr("[5]"));
    std::vector<float> valid_values(5, 1.0F);
    EXPECT_EQ(allreduce(engine, valid_values, "weights"), Status());
    EXPECT_EQ(valid_values[4], 3.0F);
  });
}

TEST(Engine, ANameInFlightTwiceIsRejectedAtSubmit) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> first_values(3, 1.0F);
    std::vector<float> second_values(3, 1.0F);
    if (engine.topology().rank == 1) {  // `x` cannot complete before rank 0 has submitted it twice
      EXPECT_EQ(allreduce(engine, first_values, "go"), Status());
      EXPECT_EQ(allreduce(engine, second_values, "x"), Status());
      return;
    }
    const auto pending_handle = engine.submit(allreduce_of(first_values, "x"));
    const auto rejected = engine.submit(allreduce_of(second_values, "x"));
    ASSERT_FALSE(rejected.ok());
    EXPECT_EQ(rejected.status().code(), StatusCode::kFixCall);
    EXPECT_THAT(rejected.status().message(), HasSubstr("`x` is in use by an earlier call"));
    EXPECT_EQ(allreduce(engine, second_values, "go"), Status());
    EXPECT_EQ(finish(engine, pending_handle).status, Status());
  });
}

TEST(Engine, CallsThatNeedALeaverFailWithItsName) {
  run_job(3, {}, [](Engine& engine) {
    std::vector<float> values(100'000, 1.0F);
    EXPECT_EQ(allreduce(engine, values, "first"), Status());
    if (engine.topology().rank == 1) {
      (void)engine.shutdown("uncaught ValueError: bad data");
      const auto call_after_leave = engine.submit(allreduce_of(values, "late"));
      EXPECT_EQ(call_after_leave.status().code(), StatusCode::kFixCall);
      return;
    }
    const Status status = allreduce(engine, values, "second");
    EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
    EXPECT_THAT(status.message(), HasSubstr("uncaught ValueError: bad data"));
  });
}

TEST(Engine, ARankThatIsNotInTheGroupMayLeave) {
  run_job(3, {{0, 1}}, [](Engine& engine) {
    if (engine.topology().rank == 2) return;
    for (int round = 0; round < 100; ++round) {
      std::vector<float> values(1000, 1.0F);
      ASSERT_EQ(allreduce(engine, values, "pair", 1), Status());
    }
  });
}

// If a rank leaves right after its last step, the others must still get the result of that step.
TEST(Engine, LeavingAfterTheLastStepKeepsTheResult) {
  for (int round = 0; round < 30; ++round)
    run_job(3, {}, [](Engine& engine) {
      std::vector<float> values(200'000, 1.0F);
      EXPECT_EQ(allreduce(engine, values), Status());
      EXPECT_EQ(values.back(), 3.0F);
    });
}

// As in the last test, but the memory is exposed: other ranks may still read it when the first
// ranks leave.
TEST(Engine, LeavingAfterTheLastStepKeepsExposedMemory) {
  for (int round = 0; round < 30; ++round)
    run_job(4, {}, [](Engine& engine) {
      constexpr std::int64_t kBytes = 3 << 20;
      const auto memory = engine.allocate(kBytes).value();
      Submission submission;
      submission.operation = Operation::kBroadcast;
      submission.shape = {kBytes};
      submission.input = submission.output = memory.get();
      EXPECT_EQ(finish(engine, engine.submit(submission, kTestTimeout)).status, Status());
    });
}

TEST(Engine, ShutdownEndsPendingCalls) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(10, 1.0F);
    if (engine.topology().rank == 1) {
      EXPECT_EQ(barrier(engine), Status());
      return;
    }
    const auto handle = engine.submit(allreduce_of(values, "never"));
    ASSERT_TRUE(handle.ok());
    std::thread waiter([&] { EXPECT_TRUE(engine.wait(*handle, kTestTimeout)); });
    EXPECT_EQ(barrier(engine), Status());
    (void)engine.shutdown("enough");
    waiter.join();
    EXPECT_EQ(engine.take(*handle).status.code(), StatusCode::kRebuildGroup);
  });
}

TEST(Engine, ManyThreadsOfOneRankMayMakeCalls) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<std::thread> user_threads;
    for (int user = 0; user < 4; ++user)
      user_threads.emplace_back([&engine, user] {
        for (int round = 0; round < 50; ++round) {
          std::vector<float> values(static_cast<std::size_t>(100 * user + 1), 1.0F);
          ASSERT_EQ(allreduce(engine, values, "user" + std::to_string(user)), Status());
          ASSERT_EQ(values[0], 2.0F);
        }
      });
    for (auto& user : user_threads) user.join();
  });
}

TEST(Engine, ACallCompletesWithoutAWaitingThread) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(500'000, 1.0F);
    const auto handle = engine.submit(allreduce_of(values, "background"));
    ASSERT_TRUE(handle.ok());
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    while (!engine.poll(*handle) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ASSERT_TRUE(engine.poll(*handle));
    EXPECT_EQ(engine.take(*handle).status, Status());
    EXPECT_EQ(values.back(), 2.0F);
  });
}

// Returns how many nanoseconds the threads of this name have run, as counted by the scheduler.
std::int64_t core_nanoseconds_of(const std::string& thread_name) {
  std::int64_t total = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    std::int64_t nanoseconds = 0;
    if (name == thread_name) std::ifstream(task.path() / "schedstat") >> nanoseconds;
    total += nanoseconds;
  }
  return total;
}

// After a call that completed quickly, the progress thread must not spin while it waits for another
// call.
TEST(Engine, TheProgressThreadSleepsWhileAPeerIsLate) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(10, 1.0F);
    EXPECT_EQ(allreduce(engine, values, "first"), Status());
    if (engine.topology().rank == 1) {
      EXPECT_EQ(allreduce(engine, values, "go"), Status());
      EXPECT_EQ(allreduce(engine, values, "late"), Status());
      return;
    }
    std::vector<float> late_values(10, 1.0F);
    const auto handle = engine.submit(allreduce_of(late_values, "late"));
    ASSERT_TRUE(handle.ok());
    bool has_slept = false;
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    while (!has_slept && std::chrono::steady_clock::now() < deadline) {
      const std::int64_t time_before = core_nanoseconds_of("farandole-prog");
      std::this_thread::sleep_for(milliseconds(50));  // a spinning thread would use more core time
      has_slept = core_nanoseconds_of("farandole-prog") == time_before;
    }
    EXPECT_TRUE(has_slept);
    EXPECT_EQ(allreduce(engine, values, "go"), Status());
    EXPECT_EQ(finish(engine, handle).status, Status());
  });
}

// The number of progress threads of this process, whether all of them sleep, and how often they
// have gone to sleep. `sleep_count` grows each time a thread was woken and sleeps again.
struct ProgressThreadStates {
  int count = 0;
  bool all_asleep = true;
  std::int64_t sleep_count = 0;

  friend bool operator==(const ProgressThreadStates&, const ProgressThreadStates&) = default;
};

ProgressThreadStates read_progress_threads() {
  ProgressThreadStates states;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    char state = 0;
    std::int64_t sleep_count = 0;
    std::ifstream file(task.path() / "status");
    for (std::string word; file >> word;) {
      if (word == "Name:") file >> name;
      if (word == "State:") file >> state;
      if (word == "voluntary_ctxt_switches:") file >> sleep_count;
    }
    if (name != "farandole-prog") continue;
    ++states.count;
    states.all_asleep = states.all_asleep && state == 'S';
    states.sleep_count += sleep_count;
  }
  return states;
}

// Waits until this many progress threads have started and sleep. A thread that waits for a core is
// not asleep.
void wait_until_asleep(int threads) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  ProgressThreadStates states_before;
  for (;;) {
    const ProgressThreadStates current_states = read_progress_threads();
    if (current_states.count == threads && current_states.all_asleep &&
        current_states == states_before)
      return;
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    states_before = current_states;
    std::this_thread::sleep_for(milliseconds(50));
  }
}

TEST(Engine, TheProgressThreadIsNotWokenForCallsWithWaiters) {
  constexpr int kRounds = 500;
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(10, 0.0F);
    const std::vector<Submission> batch(3);  // barriers; the engine chooses their names
    if (engine.topology().rank == 0) wait_until_asleep(2);
    EXPECT_EQ(barrier(engine), Status());
    const std::int64_t sleeps_before = read_progress_threads().sleep_count;
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_EQ(allreduce(engine, values, "values"), Status());
      const auto handles = engine.submit_batch(batch, kTestTimeout);
      ASSERT_TRUE(handles.ok());
      for (const Handle handle : *handles) ASSERT_EQ(engine.take(handle).status, Status());
    }
    // If a call had woken a thread, the thread would have gone to sleep again, and `sleep_count`
    // would be larger.
    EXPECT_LT(read_progress_threads().sleep_count - sleeps_before, kRounds / 10);
    EXPECT_EQ(barrier(engine), Status());
  });
}

TEST(Engine, ACallIsCompletedAfterTheWaitLimit) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(10, 1.0F);
    const bool is_rank_0 = engine.topology().rank == 0;
    const auto early_handle = is_rank_0
                                  ? engine.submit(allreduce_of(values, "late"), milliseconds(1))
                                  : Result<Handle>(Handle{0});
    ASSERT_TRUE(early_handle.ok());
    EXPECT_EQ(engine.poll(*early_handle), !is_rank_0);  // unknown handles count as done
    EXPECT_EQ(barrier(engine), Status());
    if (!is_rank_0) {
      EXPECT_EQ(allreduce(engine, values, "late"), Status());
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
    while (!engine.poll(*early_handle) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(engine.take(*early_handle).status, Status());
    EXPECT_EQ(values[0], 2.0F);
  });
}

TEST(Engine, AnInfiniteLimitIsAccepted) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(10, 1.0F);
    const auto handle = engine.submit(allreduce_of(values));
    ASSERT_TRUE(handle.ok());
    EXPECT_TRUE(engine.wait(*handle, milliseconds::max()));
    EXPECT_EQ(engine.take(*handle).status, Status());
  });
}

TEST(Engine, AnUnfinishedCallCannotBeTaken) {
  run_job(2, {}, [](Engine& engine) {
    const bool is_rank_0 = engine.topology().rank == 0;
    Submission late_call;
    late_call.name = "late";
    const Result<Handle> handle = is_rank_0 ? engine.submit(late_call) : Result<Handle>(Handle{0});
    if (is_rank_0) {
      EXPECT_EQ(engine.take(*handle).status, Status::retry("`late` is not done yet"));
    }
    EXPECT_EQ(barrier(engine), Status());
    EXPECT_EQ(finish(engine, is_rank_0 ? handle : engine.submit(late_call)).status, Status());
  });
}

TEST(Engine, ABatchStartsAsAWholeOrNotAtAll) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<std::vector<float>> values(3, std::vector<float>(1000, 1.0F));
    std::vector<Submission> batch;
    for (std::size_t i = 0; i < 3; ++i)
      batch.push_back(allreduce_of(values[i], "member" + std::to_string(i)));
    batch[2].name = "member0";
    const std::string rank = "rank " + std::to_string(engine.topology().rank) + ": ";
    EXPECT_EQ(engine.submit_batch(batch).status(),
              Status::fix_call(
                  rank + "`member0` is in use by an earlier call whose result was not waited "
                         "for: keep the handle of that call and wait for it first, or give "
                         "this call another name (the name of a call whose handle was dropped "
                         "stays in use)"));
    batch[2].name = "member2";
    batch[1].shape = {-1};
    EXPECT_EQ(
        engine.submit_batch(batch).status(),
        Status::fix_call(rank + "allreduce `member1` has the shape [-1], which no tensor has: each "
                                "dimension must be 0 or more, and the whole tensor smaller than "
                                "2^62 bytes"));
    batch[1].shape = {1000};
    const auto handles = engine.submit_batch(batch);
    ASSERT_TRUE(handles.ok()) << handles.status().message();
    ASSERT_EQ(handles->size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(finish(engine, (*handles)[i]).status, Status());
      EXPECT_EQ(values[i].back(), 2.0F);
    }
    EXPECT_TRUE(engine.submit_batch({})->empty());
  });
}

TEST(Engine, AFailedBatchReleasesItsAutomaticNames) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> first_values(3, 1.0F);
    std::vector<float> second_values(3, 1.0F);
    std::vector<Submission> batch = {allreduce_of(first_values), allreduce_of(second_values, "x"),
                                     allreduce_of(second_values, "x")};
    // Only rank 1 submits this batch, and the batch fails. If rank 1 then kept the automatic name,
    // the ranks would choose different names for the next call.
    if (engine.topology().rank == 1) {
      EXPECT_FALSE(engine.submit_batch(batch).ok());
    }
    EXPECT_EQ(allreduce(engine, first_values), Status());
    EXPECT_EQ(first_values[0], 2.0F);
  });
}

Submission join_call() {
  Submission submission;
  submission.operation = Operation::kJoin;
  return submission;
}

// Rank r has 3 × r tensors. A rank that has no tensors left joins.
void run_uneven_epoch(Engine& engine) {
  const int size = engine.topology().size;
  const int rank = engine.topology().rank;
  for (int step = 0; step < 3 * rank; ++step) {
    std::vector<float> values(90'000, static_cast<float>(rank + 1));
    Submission submission = allreduce_of(values);
    const bool is_average = step % 2 == 1;
    if (is_average) submission.reduce_op = ReduceOp::kAverage;
    ASSERT_EQ(finish(engine, engine.submit(submission)).status, Status());
    float sum = 0;
    for (int other_rank = step / 3 + 1; other_rank < size; ++other_rank)
      sum += static_cast<float>(other_rank + 1);
    ASSERT_EQ(values.back(), is_average ? sum / static_cast<float>(size) : sum);
    ASSERT_EQ(values.front(), values.back());
  }
  const Outcome outcome = finish(engine, engine.submit(join_call()));
  ASSERT_EQ(outcome.status, Status());
  ASSERT_EQ(outcome.last_joined, size - 1);
  ASSERT_EQ(barrier(engine), Status());
}

TEST_P(EngineOfSize, RanksWithLessDataJoin) {
  run_job(GetParam(), {}, [](Engine& engine) {
    for (int round = 0; round < 3; ++round) run_uneven_epoch(engine);
  });
}

TEST(Engine, AfterAJoinOtherCallsAreRejected) {
  std::latch call_rejected(1);  // rank 1 joins after the rejection
  run_job(2, {}, [&](Engine& engine) {
    std::vector<float> values(10, 1.0F);
    if (engine.topology().rank == 1) {
      EXPECT_EQ(allreduce(engine, values, "go"), Status());
      call_rejected.wait();
      EXPECT_EQ(finish(engine, engine.submit(join_call())).status, Status());
      return;
    }
    const auto join = engine.submit(join_call());
    EXPECT_TRUE(join.ok());
    EXPECT_EQ(
        engine.submit(allreduce_of(values)).status(),
        Status::fix_call("rank 0: allreduce was called after join() in group 0: wait until join() "
                         "has returned, which is when all ranks have joined"));
    call_rejected.count_down();
    EXPECT_EQ(finish(engine, join).last_joined, 1);
  });
}

// In each round, a different rank has one batch more than the others, so it joins last. If the
// coordinator joins last, it may not have received the other joins yet.
TEST(Engine, AllRanksGetTheRankThatJoinedLast) {
  constexpr int kRanks = 3;
  std::array<std::latch, kRanks> join_latches{std::latch(kRanks - 1), std::latch(kRanks - 1),
                                              std::latch(kRanks - 1)};
  run_job(kRanks, {}, [&](Engine& engine) {
    for (int last_rank = 0; last_rank < kRanks; ++last_rank) {
      std::latch& others_joined = join_latches[static_cast<std::size_t>(last_rank)];
      std::vector<float> values(1, 1.0F);
      if (engine.topology().rank == last_rank) {
        others_joined.wait();
        EXPECT_EQ(allreduce(engine, values, "more"), Status());
      }
      const auto join = engine.submit(join_call());
      if (engine.topology().rank != last_rank) others_joined.count_down();
      EXPECT_EQ(finish(engine, join).last_joined, last_rank);
      EXPECT_EQ(barrier(engine), Status());
    }
  });
}

TEST(Engine, OtherOperationsAreRejectedWhileARankHasJoined) {
  run_job(3, {}, [](Engine& engine) {
    if (engine.topology().rank != 2) {
      const Status status = barrier(engine);
      EXPECT_EQ(status.code(), StatusCode::kFixCall);
      EXPECT_THAT(status.message(), HasSubstr("rank 2"));
      EXPECT_THAT(status.message(), HasSubstr("joined"));
    }
    EXPECT_EQ(finish(engine, engine.submit(join_call())).status, Status());
    EXPECT_EQ(barrier(engine), Status());
  });
}

TEST(Engine, ACallThatWaitsTooLongEndsTheJob) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2);
    options.stall_limit = std::chrono::seconds(rank == 0 ? 1 : 0);
    const auto engine = value_or_abort(assemble(options, store));
    std::vector<float> values(10, 1.0F);
    if (rank == 0) {
      EXPECT_EQ(
          allreduce(*engine, values, "loss"),
          Status::rebuild_group(
              "allreduce `loss` cannot finish: allreduce `loss` has waited 1 s for other "
              "ranks, which is the FARANDOLE_STALL_LIMIT; the launcher's report says for which"));
      return;
    }
    const Status status = barrier(*engine);
    EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
    EXPECT_THAT(status.message(), HasSubstr("rank 0"));
    EXPECT_THAT(status.message(), HasSubstr("it gave up: allreduce `loss` had waited 1 s"));
  });
}

TEST(Engine, TheFlightRecordShowsCallsAndTheEnd) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto memory = Segment::create("record", FlightRecorder::bytes_needed());
    ASSERT_TRUE(memory.ok());
    auto options = options_of(rank, 2, {{0}});
    options.flight_record_descriptor = (*memory)->descriptor().get();
    const auto engine = value_or_abort(assemble(options, store));
    std::vector<float> values(6, 1.0F);
    EXPECT_EQ(allreduce(*engine, values, "grad"), Status());
    FlightReport report = read_flight_record((*memory)->data());
    EXPECT_EQ(report.member_state, MemberState::kMember);
    EXPECT_EQ(report.groups, rank == 0 ? (std::vector<GroupId>{0, 1}) : (std::vector<GroupId>{0}));
    ASSERT_EQ(report.calls.size(), 1U);
    EXPECT_EQ(report.calls[0].name, "grad");
    EXPECT_EQ(report.calls[0].elements, 6);
    EXPECT_EQ(report.calls[0].state, CallState::kDone);
    EXPECT_EQ(report.counts.calls, 1U);
    EXPECT_EQ(report.counts.bytes, 24U);
    EXPECT_EQ(report.wait.handle, report.calls[0].handle);
    EXPECT_TRUE(report.wait.until.has_value());
    EXPECT_LE(report.counts.blocked, std::chrono::steady_clock::now() - report.since);
    if (rank == 1) {
      EXPECT_EQ(barrier(*engine), Status());  // now rank 0 has submitted its next call
      (void)engine->shutdown("raised ValueError: x", LeaveCause::kException, "Traceback: here");
      report = read_flight_record((*memory)->data());
      EXPECT_EQ(report.member_state, MemberState::kLeft);
      EXPECT_EQ(report.cause, LeaveCause::kException);
      EXPECT_EQ(report.reason, "raised ValueError: x");
      EXPECT_EQ(report.traceback, "Traceback: here");
      return;
    }
    const auto next_handle = engine->submit(allreduce_of(values, "next"));
    EXPECT_EQ(barrier(*engine), Status());
    EXPECT_EQ(finish(*engine, next_handle).status.code(), StatusCode::kRebuildGroup);
    report = read_flight_record((*memory)->data());
    EXPECT_EQ(report.blamed_rank, 1);
    ASSERT_EQ(report.calls.size(), 3U);
    EXPECT_EQ(report.calls[1].name, "next");
    EXPECT_EQ(report.calls[1].state, CallState::kFailed);
  });
}

TEST(Engine, ADroppedCallIsForgottenButNotItsName) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> dropped_values(1000, 1.0F);
    const auto handle = engine.submit(allreduce_of(dropped_values));
    ASSERT_TRUE(handle.ok());
    // Rank 0 may drop the call while it is in flight; rank 1 drops the finished call.
    if (engine.topology().rank == 0) engine.drop(*handle);
    EXPECT_TRUE(engine.wait(*handle, kTestTimeout));
    engine.drop(*handle);
    EXPECT_EQ(engine.take(*handle).status.code(), StatusCode::kFixCall);
    EXPECT_EQ(dropped_values.back(), 2.0F);
    std::vector<float> next_values(10, 1.0F);
    EXPECT_EQ(allreduce(engine, next_values), Status());
    EXPECT_EQ(next_values[0], 2.0F);
  });
}

void poll_and_peek(Engine& engine, const std::vector<Handle>& handles) {
  for (const Handle handle : handles) {
    if (!engine.poll(handle)) continue;
    EXPECT_EQ(engine.peek(handle).status, Status());
  }
}

// Each rank polls and drops calls at its own random times.
TEST(Engine, AutomaticNamesDoNotDependOnPollsAndDrops) {
  constexpr int kRounds = 50;
  run_job(3, {}, [](Engine& engine) {
    const int rank = engine.topology().rank;
    std::mt19937 random(static_cast<unsigned>(rank));
    std::vector<std::vector<float>> values(6 * kRounds);
    std::vector<Handle> untaken_handles;
    for (std::size_t call = 0; call < values.size();) {
      std::vector<Handle> handles;
      for (int i = 0; i < 6; ++i, ++call) {
        values[call].assign(50, static_cast<float>(call));
        const auto handle = engine.submit(allreduce_of(values[call]));
        ASSERT_TRUE(handle.ok());
        handles.push_back(*handle);
        if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        poll_and_peek(engine, handles);
      }
      if (random() % 2 == 0) engine.drop(handles.back());
      untaken_handles.push_back(handles.back());
      handles.pop_back();
      for (const Handle handle : handles) ASSERT_EQ(finish(engine, handle).status, Status());
    }
    for (const Handle handle : untaken_handles) ASSERT_TRUE(engine.wait(handle, kTestTimeout));
    for (std::size_t call = 0; call < values.size(); ++call)
      ASSERT_EQ(values[call].front(), 3 * static_cast<float>(call));
  });
}

TEST(Engine, APeekedOutcomeCanStillBeTaken) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(10, 1.0F);
    const auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(handle.ok());
    EXPECT_TRUE(engine.wait(*handle, kTestTimeout));
    EXPECT_EQ(engine.peek(*handle).status, Status());
    EXPECT_FALSE(engine.submit(allreduce_of(values, "x")).ok());
    EXPECT_EQ(engine.take(*handle).status, Status());
    EXPECT_EQ(engine.peek(*handle).status.code(), StatusCode::kFixCall);
    EXPECT_EQ(allreduce(engine, values, "x"), Status());
  });
}

TEST(Engine, HeapMemoryOutlivesTheEngine) {
  std::shared_ptr<std::byte> memory;
  {
    const auto store = std::make_shared<MemoryStore>();
    const auto engine = value_or_abort(assemble(options_of(0, 1), store));
    auto allocation = engine->allocate(1 << 20);
    ASSERT_TRUE(allocation.ok());
    memory = *allocation;
  }
  std::memset(memory.get(), 7, 1 << 20);
  EXPECT_EQ(memory.get()[(1 << 20) - 1], std::byte{7});
}

TEST(Formation, DifferentGroupsAreNamedOnAllRanks) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2);
    if (rank == 1) options.groups = {{0}};
    const auto engine = assemble(options, store);
    ASSERT_FALSE(engine.ok());
    EXPECT_THAT(engine.status().message(), HasSubstr("groups"));
  });
}

TEST(Formation, DifferentBucketBytesAreRejected) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2);
    options.bucket_bytes = rank == 0 ? 1000 : 2000;
    const auto engine = assemble(options, store);
    ASSERT_FALSE(engine.ok());
    EXPECT_THAT(engine.status().message(), HasSubstr("FARANDOLE_BUCKET_BYTES"));
  });
}

TEST(Formation, AMissingRankIsNamed) {
  const auto store = std::make_shared<MemoryStore>();
  auto options = options_of(0, 3);
  options.start_timeout = milliseconds(50);
  const auto engine = assemble(options, store);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(engine.status().message(), HasSubstr("ranks 1, 2"));
}

TEST(Formation, AnInvalidGroupOnOneRankIsAnErrorOnAll) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2);
    if (rank == 1) options.groups = {{1, 0}};
    const auto engine = assemble(options, store);
    ASSERT_FALSE(engine.ok());
    EXPECT_THAT(engine.status().message(), HasSubstr("[1, 0]"));
    if (rank == 0) {
      EXPECT_THAT(engine.status().message(), HasSubstr("rank 1 could not start"));
    }
  });
}

// If a formation fails, a rank that calls create() later still gets the error of that formation.
// The next formation works.
TEST(Formation, AfterAFailureTheNextOneWorks) {
  const auto store = std::make_shared<MemoryStore>();
  auto hasty_options = options_of(0, 2);
  hasty_options.start_timeout = milliseconds(20);
  EXPECT_FALSE(assemble(hasty_options, store).ok());
  EXPECT_FALSE(assemble(options_of(1, 2), store).ok());
  std::thread rank_1([&] {
    const auto engine = value_or_abort(assemble(options_of(1, 2), store));
    EXPECT_EQ(barrier(*engine), Status());
  });
  const auto engine = value_or_abort(assemble(options_of(0, 2), store));
  EXPECT_EQ(barrier(*engine), Status());
  rank_1.join();
}

TEST(Formation, AnInterruptionEndsTheWait) {
  const auto store = std::make_shared<MemoryStore>();
  std::atomic<int> checks = 0;
  auto options = options_of(0, 2);
  options.interrupted = [&] { return ++checks > 1; };
  const auto engine = assemble(options, store);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kRetry);
}

TEST(Formation, CanBeRepeatedInOneProcess) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    for (int iteration = 0; iteration < 20; ++iteration) {
      const auto engine = value_or_abort(assemble(options_of(rank, 2), store));
      std::vector<float> values(10, 1.0F);
      ASSERT_EQ(allreduce(*engine, values), Status());
    }
  });
}

TEST(Formation, WithoutALauncherOnlySizeOneWorks) {
  const auto engine = Engine::create(options_of(0, 2));
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(engine.status().message(), HasSubstr("farandole run"));
  auto single_rank_options = options_of(0, 1);
  EXPECT_TRUE(Engine::create(single_rank_options).ok());
}

}  // namespace
}  // namespace farandole
