// Tests what the engines of one process share, one after another or at the same time. Each rank is
// a thread with its own context, as if it were a process.
#include "formation/process_context.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/job_in_test.h"
#include "network/tcp/job_in_test.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/serving_thread.h"
#include "rendezvous/store_server.h"
#include "timeline/flight_record.h"

namespace farandole {
namespace {

constexpr std::size_t kCount = 300'000;

EngineOptions options_with(const std::shared_ptr<ProcessContext>& context, int rank, int size) {
  EngineOptions options = options_of(rank, size);
  options.context = context;
  options.heap_bytes = (64 << 20) + 1;  // SharedHeap rounds this up to whole huge pages
  return options;
}

// Values in memory that was allocated with an engine.
class Tensor {
 public:
  explicit Tensor(Engine& engine, std::size_t count = kCount)
      : memory_(engine.allocate(count * sizeof(float)).value()),
        values_(reinterpret_cast<float*>(memory_.get()), count) {}

  bool is_shared_in(const Engine& engine) const {
    return engine.is_shared(values_.data(), values_.size_bytes());
  }
  Status allreduce(Engine& engine, const std::string& name = "") {
    return finish(engine, submit_allreduce(engine, name)).status;
  }
  Result<Handle> submit_allreduce(Engine& engine, const std::string& name = "") {
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = name;
    submission.dtype = DType::kFloat32;
    submission.shape = {static_cast<std::int64_t>(values_.size())};
    submission.input = submission.output = values_.data();
    return engine.submit(submission);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(values_); }
  void fill(float value) { std::ranges::fill(values_, value); }
  bool all_equal(float value) const {
    return std::ranges::all_of(values_, [value](float element) { return element == value; });
  }
  const float* data() const { return values_.data(); }

 private:
  std::shared_ptr<std::byte> memory_;  // only the test owns this memory
  std::span<float> values_;
};

TEST(ProcessContext, MemoryStaysSharedFromOneEngineToTheNext) {
  run_ranks(3, [](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto context = make_process_context();
    auto engine = value_or_abort(assemble(options_with(context, rank, 3), store));
    Tensor tensor(*engine);
    for (int engine_number = 0; engine_number < 5; ++engine_number) {
      ASSERT_TRUE(tensor.is_shared_in(*engine)) << engine_number;
      tensor.fill(static_cast<float>(rank + engine_number));
      ASSERT_EQ(tensor.allreduce(*engine), Status());
      ASSERT_TRUE(tensor.all_equal(static_cast<float>(3 + 3 * engine_number))) << engine_number;
      ASSERT_EQ(engine->shutdown("next"), Status());
      engine.reset();
      engine = value_or_abort(assemble(options_with(context, rank, 3), store));
      const Tensor other_tensor(*engine);
      ASSERT_TRUE(other_tensor.data() + kCount <= tensor.data() ||
                  tensor.data() + kCount <= other_tensor.data());
    }
  });
}

// When the step is predicted, rank 0 enters it, and exposes its output before rank 1 submits the
// call.
TEST(ProcessContext, MemoryThatAStepExposesIsNotTakenBackForAnotherEngine) {
  std::atomic<bool> is_checked = false;
  run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto context = make_process_context();
    const auto engine = value_or_abort(assemble(options_with(context, rank, 2), store));
    Tensor tensor(*engine);
    for (int iteration = 0; iteration < 30; ++iteration) {
      tensor.fill(1);
      ASSERT_EQ(tensor.allreduce(*engine, "sum"), Status());
    }
    tensor.fill(1);
    if (rank == 1) {
      while (!is_checked) std::this_thread::yield();
      ASSERT_EQ(tensor.allreduce(*engine, "sum"), Status());
    } else {
      const Handle handle = tensor.submit_allreduce(*engine, "sum").value();
      const bool is_done = engine->poll(handle);
      const auto heap = context->heap((64 << 20) + 1).value();
      const Status status = heap->unshare(tensor.bytes());
      is_checked = true;
      EXPECT_FALSE(is_done);
      EXPECT_EQ(status.code(), StatusCode::kRetry) << status.message();
      ASSERT_EQ(finish(*engine, handle).status, Status());
      EXPECT_EQ(heap->unshare(tensor.bytes()), Status());
    }
    EXPECT_TRUE(tensor.all_equal(2));
  });
}

TEST(ProcessContext, AnUnusedHeapIsDestroyed) {
  const auto context = make_process_context();
  const auto current_heap_is = [&](const std::shared_ptr<SharedHeap>& expected_heap) {
    return context->heap(64 << 20).value() == expected_heap;
  };
  const std::weak_ptr<SharedHeap> weak_heap = context->heap(64 << 20).value();
  EXPECT_TRUE(weak_heap.expired());
  const auto used_heap = context->heap(64 << 20).value();
  EXPECT_TRUE(current_heap_is(used_heap));
}

// The second job gets a smaller heap, because its peers might not be able to map the larger one.
TEST(ProcessContext, AJobThatWantsLessMemoryGetsANewHeap) {
  const auto context = make_process_context();
  auto larger_options = options_with(context, 0, 1);
  larger_options.heap_bytes = 128 << 20;
  auto engine = value_or_abort(Engine::create(larger_options));
  Tensor tensor(*engine);
  engine = value_or_abort(Engine::create(options_with(context, 0, 1)));
  EXPECT_FALSE(tensor.is_shared_in(*engine));
  const Tensor new_tensor(*engine);
  EXPECT_TRUE(new_tensor.is_shared_in(*engine));
  engine = value_or_abort(Engine::create(larger_options));
  EXPECT_TRUE(new_tensor.is_shared_in(*engine)) << "a smaller heap than requested is reused";
}

TEST(ProcessContext, AFailedStartChangesNothing) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto context = make_process_context();
    auto engine = value_or_abort(assemble(options_with(context, rank, 2), store));
    Tensor tensor(*engine);
    engine.reset();
    auto mismatched_options = options_with(context, rank, 2);
    mismatched_options.bucket_bytes = static_cast<std::size_t>(1000 + rank);
    EXPECT_EQ(assemble(mismatched_options, store).status().code(), StatusCode::kFixCall);
    engine = value_or_abort(assemble(options_with(context, rank, 2), store));
    ASSERT_TRUE(tensor.is_shared_in(*engine));
    tensor.fill(2);
    ASSERT_EQ(tensor.allreduce(*engine), Status());
    EXPECT_TRUE(tensor.all_equal(4));
  });
}

// Two jobs with different members and ranks run at the same time, on tensors in the same heaps.
TEST(ProcessContext, TwoEnginesAtOnceShareTheMemory) {
  constexpr int kRounds = 20;
  const auto other_store = std::make_shared<MemoryStore>();
  run_ranks(3, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto context = make_process_context();
    const auto job_engine = value_or_abort(assemble(options_with(context, rank, 3), store));
    Tensor tensor_of_all(*job_engine);
    std::jthread pair_thread([&] {
      if (rank == 1) return;
      // In the job of two, the ranks are swapped.
      const auto pair_engine =
          value_or_abort(assemble(options_with(context, rank == 0 ? 1 : 0, 2), other_store));
      Tensor tensor_of_pair(*pair_engine);
      EXPECT_TRUE(tensor_of_pair.is_shared_in(*job_engine));
      EXPECT_TRUE(tensor_of_all.is_shared_in(*pair_engine));
      for (int round = 0; round < kRounds; ++round) {
        tensor_of_pair.fill(static_cast<float>(rank + round));
        ASSERT_EQ(tensor_of_pair.allreduce(*pair_engine, "x"), Status());
        ASSERT_TRUE(tensor_of_pair.all_equal(static_cast<float>(2 + 2 * round))) << round;
      }
    });
    for (int round = 0; round < kRounds; ++round) {
      tensor_of_all.fill(static_cast<float>(rank + round));
      ASSERT_EQ(tensor_of_all.allreduce(*job_engine, "x"), Status());
      ASSERT_TRUE(tensor_of_all.all_equal(static_cast<float>(3 + 3 * round))) << round;
    }
    pair_thread.join();
    ASSERT_EQ(tensor_of_all.allreduce(*job_engine, "the other engine is gone"), Status());
  });
}

// A Store over sockets, as the launcher serves it.
class ServedStore {
 public:
  explicit ServedStore(int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      client_sockets_.push_back(server_->add_client("rank " + std::to_string(rank)).value());
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd polled{server_->ready_descriptor(), POLLIN, 0};
        ::poll(&polled, 1, 20);
        EXPECT_THAT(server_->serve_ready(), ::testing::IsEmpty());
      }
    });
  }
  int descriptor(int rank) const { return client_sockets_[static_cast<std::size_t>(rank)].get(); }

 private:
  std::unique_ptr<StoreServer> server_ = StoreServer::create("the launcher").value();
  std::vector<Descriptor> client_sockets_;
  std::jthread thread_;
};

// Adds and removes a group several times, which makes requests to the Store.
void change_groups(Engine& engine, int changes) {
  for (int change = 0; change < changes; ++change) {
    const auto group = engine.add_group({1});
    ASSERT_EQ(group.status(), Status());
    ASSERT_EQ(engine.remove_group(*group), Status());
  }
}

TEST(ProcessContext, TwoEnginesAtOnceUseOneConnectionToTheLauncher) {
  const ServedStore store(2);
  run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>&) {
    auto options = options_with(make_process_context(), rank, 2);
    options.rendezvous_descriptor = store.descriptor(rank);
    const auto first_engine = value_or_abort(Engine::create(options));
    const auto second_engine = value_or_abort(Engine::create(options));
    std::jthread changing_thread([&] { change_groups(*first_engine, 50); });
    change_groups(*second_engine, 50);
  });
}

TEST(ProcessContext, EnginesUseOneConnectionToTheStoreOfTheirJob) {
  const std::shared_ptr<const TlsContext> tls = context_of('s');  // destroyed after its connections
  ServingThread serving_thread(0, tls.get());
  const RemoteStore::Options options{
      .places = serving_thread.place(), .context = tls, .self = {Role::kWorker, 0}};
  const auto context = make_process_context();
  auto first_store = context->job_store(options, long_limit()).value();
  auto second_store = context->job_store(options, long_limit()).value();
  EXPECT_EQ(first_store, second_store);
  first_store.reset();
  const std::weak_ptr<Store> weak_store = std::exchange(second_store, nullptr);
  EXPECT_TRUE(weak_store.expired());
  EXPECT_EQ(context->job_store(options, long_limit()).value()->add("count", 1).value(), 1);
  serving_thread.stop();
  EXPECT_EQ(context->job_store(options, {TimePoint{}, kNotInterrupted}).status().code(),
            StatusCode::kRebuildGroup);
}

TEST(ProcessContext, OneEngineAtATimeWritesTheLaunchersFlightRecord) {
  const auto record =
      Segment::create("farandole-flight-record", FlightRecorder::bytes_needed()).value();
  auto options = options_with(make_process_context(), 0, 1);
  options.flight_record_descriptor = record->descriptor().get();
  const auto recorded_calls = [&] { return read_flight_record(record->data()).counts.calls; };
  const auto first = value_or_abort(Engine::create(options));
  ASSERT_EQ(barrier(*first), Status());
  const auto second = value_or_abort(Engine::create(options));
  ASSERT_EQ(barrier(*second), Status());
  EXPECT_EQ(recorded_calls(), 1u);
  ASSERT_EQ(second->shutdown("enough"), Status());
  EXPECT_EQ(read_flight_record(record->data()).member_state, MemberState::kMember);
  ASSERT_EQ(first->shutdown("enough"), Status());
  EXPECT_EQ(read_flight_record(record->data()).member_state, MemberState::kLeft);
  const auto third = value_or_abort(Engine::create(options));
  EXPECT_EQ(read_flight_record(record->data()).member_state, MemberState::kMember);
  for (int call = 0; call < 3; ++call) ASSERT_EQ(barrier(*third), Status());
  EXPECT_EQ(recorded_calls(), 3u);
}

// If a forked child allocates or frees memory, the parent's memory must not change.
TEST(ProcessContext, AForkedChildGetsMemoryOfItsOwn) {
  const auto context = make_process_context();
  auto engine = value_or_abort(Engine::create(options_with(context, 0, 1)));
  Tensor tensor(*engine);
  tensor.fill(3);
  engine.reset();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto child_engine = value_or_abort(Engine::create(options_with(context, 0, 1)));
    Tensor new_tensor(*child_engine);
    new_tensor.fill(4);
    const bool has_own_memory = !tensor.is_shared_in(*child_engine) &&
                                new_tensor.is_shared_in(*child_engine) &&
                                child_engine->shutdown("enough").ok() && tensor.all_equal(3);
    ::_exit(has_own_memory ? 42 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_TRUE(tensor.all_equal(3));
  engine = value_or_abort(Engine::create(options_with(context, 0, 1)));
  EXPECT_TRUE(tensor.is_shared_in(*engine));
}

TEST(ProcessContext, FailpointsStrikeBeforeAndAfterTheEndOfAnEngine) {
  for (const std::string place : {"engine.stopping", "engine.stopped"}) {
    const auto use_two_engines = [&] {
      EngineOptions options = options_with(make_process_context(), 0, 1);
      options.failpoint = place + ":kill:2";
      for (int i = 0; i < 2; ++i) {
        const auto engine = value_or_abort(Engine::create(options));
        std::fprintf(stderr, "engine %d\n", i);
        (void)engine->shutdown("enough");
      }
    };
    EXPECT_EXIT(use_two_engines(), testing::KilledBySignal(SIGKILL),
                "engine 0.*engine 1.*failpoint " + place + ": kill");
  }
}

TEST(ProcessContext, AWrongFailpointIsAnErrorOfTheCall) {
  EngineOptions options = options_with(make_process_context(), 0, 1);
  options.failpoint = "engine.stopped:explode:1";
  const auto engine = Engine::create(options);
  EXPECT_EQ(engine.status().code(), StatusCode::kFixCall);
  EXPECT_NE(engine.status().message().find("FARANDOLE_FAILPOINT is \"engine.stopped:explode:1\""),
            std::string::npos);
}

}  // namespace
}  // namespace farandole
