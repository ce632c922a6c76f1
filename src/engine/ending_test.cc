// A rank ends in the middle of a call. The call must have the same outcome on all ranks. After the
// call has failed, no rank may write to the tensors of other ranks.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <future>
#include <latch>
#include <sstream>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "engine/hosts_in_test.h"
#include "engine/job_in_test.h"
#include "engine/processes_in_test.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;

// A tensor in the shared heap, which the other ranks can read and write.
class SharedTensor {
 public:
  SharedTensor(Engine& engine, std::size_t count)
      : memory_(engine.allocate(count * sizeof(float)).value()),
        values_(reinterpret_cast<float*>(memory_.get()), count) {}

  void fill(float value) { std::ranges::fill(values_, value); }
  std::size_t count_not_equal(float value) const {
    return values_.size() - static_cast<std::size_t>(std::ranges::count(values_, value));
  }
  const float* data() const { return values_.data(); }

  // An allreduce in place.
  Submission allreduce(std::string name, GroupId group = kWorld) const {
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = std::move(name);
    submission.group = group;
    submission.dtype = DType::kFloat32;
    submission.shape = {static_cast<std::int64_t>(values_.size())};
    submission.input = submission.output = values_.data();
    return submission;
  }

 private:
  std::shared_ptr<std::byte> memory_;  // the heap owns this memory, too
  std::span<float> values_;
};

bool is_leave_error(const Status& status, const std::string& reason) {
  return status.code() == StatusCode::kRebuildGroup &&
         status.message().find("has left the job (" + reason) != std::string::npos;
}

// The second rank submits the call after the first rank has given up on it.
TEST(Ending, ACallThatOneRankHasGivenUpFailsOnTheOthersToo) {
  for (const std::size_t count : {std::size_t{2}, std::size_t{300'000}}) {
    std::latch has_given_up(1);
    run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>& store) {
      EngineOptions options = options_of(rank, 2);
      if (rank == 0) options.stall_limit = std::chrono::seconds(1);
      const auto engine = value_or_abort(assemble(options, store));
      std::vector<float> values(count, 1.0F);
      if (rank == 1) has_given_up.wait();
      const Status status = allreduce(*engine, values, "gradients");
      if (rank == 0) has_given_up.count_down();
      EXPECT_EQ(status.code(), StatusCode::kRebuildGroup) << count;
      EXPECT_TRUE(rank == 0 || is_leave_error(status, "it gave up")) << status.message();
      EXPECT_EQ(values, std::vector<float>(count, 1.0F));
    });
  }
}

TEST(Ending, ACallThatOneRankEndsByShutdownFailsOnTheOthersToo) {
  std::latch has_left(1);
  run_job(2, {}, [&](Engine& engine) {
    const bool leaves_job = engine.topology().rank == 0;
    std::vector<float> values(2, 1.0F);
    if (!leaves_job) has_left.wait();
    const auto handle = engine.submit(allreduce_of(values, "gradients"));
    ASSERT_TRUE(handle.ok() || !leaves_job);
    if (leaves_job) (void)engine.shutdown("enough");
    if (leaves_job) has_left.count_down();
    const Status status = finish(engine, handle).status;
    EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
    EXPECT_TRUE(leaves_job || is_leave_error(status, "enough")) << status.message();
  });
}

// A Store that does not answer until answer() is called.
class SilentStore final : public Store {
 public:
  Status set(const std::string& /*key*/, Bytes /*value*/) override { return wait_for_answer(); }
  Result<StoreValues> wait_for_all(const std::vector<std::string>& /*keys*/,
                                   const std::string& /*unless*/,
                                   const WaitLimit& /*limit*/) override {
    return wait_for_answer();
  }
  Result<std::int64_t> add(const std::string& /*key*/, std::int64_t /*delta*/) override {
    return wait_for_answer();
  }
  Status remove_all(const std::vector<std::string>& /*keys*/) override { return wait_for_answer(); }
  Result<TimePoint> clock() override { return wait_for_answer(); }

  void wait_for_a_call() { first_call_.wait(); }
  void answer() {
    *may_answer_.lock() = true;
    may_answer_.notify_all();
  }

 private:
  Status wait_for_answer() {
    if (!was_asked_.exchange(true)) first_call_.count_down();
    may_answer_.lock().wait([](bool may_answer) { return may_answer; });
    return Status::stop("the Store has failed");
  }

  std::latch first_call_{1};
  std::atomic<bool> was_asked_ = false;
  Guarded<bool> may_answer_{false};
};

// The Store does not answer the thread that reports stalls, so shutdown() waits for this thread.
TEST(Ending, ARankThatLeavesTellsTheOthersBeforeItWaitsForItsThreads) {
  const JobOnHosts job({0, 1});
  const auto reports = std::make_shared<SilentStore>();  // shared with the engine of rank 1
  std::jthread leaver([&] {
    const auto engine = value_or_abort(job.join_and_report(job.options(1), reports));
    reports->wait_for_a_call();
    (void)engine->shutdown("enough");
  });
  const auto engine = value_or_abort(job.join(job.options(0)));
  std::vector<float> values(2, 1.0F);
  const auto handle = engine->submit(allreduce_of(values, "gradients"));
  const Status status = finish(*engine, handle).status;
  EXPECT_TRUE(is_leave_error(status, "enough")) << status.message();
  reports->answer();
}

// Rank 2 leaves in the middle of a call of the world. Then the others reduce in the same memory, in
// a group without rank 2. The first call must not change the result of the second one.
TEST(Ending, AGroupWithoutTheLeaverGoesOnInTheSameMemory) {
  constexpr std::size_t kCount = 6 << 20;
  for (int round = 0; round < 8; ++round) {
    std::vector<StatusCode> codes(3);
    run_job(3, {{0, 1}}, [&](Engine& engine) {
      const int rank = engine.topology().rank;
      SharedTensor tensor(engine, kCount);
      tensor.fill(1);
      const auto handle = engine.submit(tensor.allreduce("all"));
      if (rank == 2) (void)engine.shutdown("enough");
      codes[static_cast<std::size_t>(rank)] = finish(engine, handle).status.code();
      if (rank == 2) return;
      tensor.fill(static_cast<float>(rank + 3));
      const Status status = finish(engine, engine.submit(tensor.allreduce("pair", 1))).status;
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(tensor.count_not_equal(7), 0u) << "rank " << rank << ", round " << round;
    });
    EXPECT_EQ(codes[0], codes[1]);
    EXPECT_EQ(codes[0], codes[2]);
  }
}

// A failpoint in the middle of a reduction: stops this process at its first access to the page of
// `address`, or to the page at the same offset in another rank's heap.
class StopAtAccess {
 public:
  explicit StopAtAccess(const void* address) {
    const auto address_value = reinterpret_cast<std::uintptr_t>(address);
    for (const Mapping& mapping : heap_mappings())
      if (address_value >= mapping.begin && address_value < mapping.end)
        heap_offset_ = mapping.offset + (address_value - mapping.begin);
    for (const Mapping& mapping : heap_mappings())
      if (heap_offset_ >= mapping.offset &&
          heap_offset_ - mapping.offset < mapping.end - mapping.begin)
        pages_.push_back((mapping.begin + heap_offset_ - mapping.offset) / kPageBytes * kPageBytes);
    struct sigaction action{};
    action.sa_handler = stop;
    ::sigaction(SIGSEGV, &action, nullptr);
    protect(PROT_NONE);
  }

 private:
  static constexpr std::size_t kPageBytes = 4096;
  struct Mapping {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::uintptr_t offset;
  };

  static std::vector<Mapping> heap_mappings() {
    std::vector<Mapping> mappings;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("farandole-heap") == std::string::npos) continue;
      Mapping mapping{};
      if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx", &mapping.begin, &mapping.end,
                      &mapping.offset) == 3)
        mappings.push_back(mapping);
    }
    return mappings;
  }
  static void protect(int rights) {
    for (const std::uintptr_t page : pages_)
      ::mprotect(reinterpret_cast<void*>(page), kPageBytes, rights);
  }
  static void stop(int) {
    protect(PROT_READ | PROT_WRITE);
    ::raise(SIGSTOP);
  }

  std::uintptr_t heap_offset_ = 0;
  static inline std::vector<std::uintptr_t> pages_;
};

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream text;
  text << file.rdbuf();
  return text.str().find(") T ") != std::string::npos;
}

// Memory that all processes of a test share.
struct SharedByProcesses {
  std::atomic<pid_t> pids[3];
  // grows when rank 2 may leave, and each time a rank has refilled its tensor
  std::atomic<int> stage;
  std::atomic<bool> has_resumed;  // the call of the stopped process has ended
};

template <class Condition>
bool wait_until(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

class MemoryOfAStoppedSurvivor : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 3 << 20;

  MemoryOfAStoppedSurvivor()
      : shared_(new(::mmap(nullptr, sizeof(SharedByProcesses), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) SharedByProcesses{}) {}
  ~MemoryOfAStoppedSurvivor() override { ::munmap(shared_, sizeof(SharedByProcesses)); }

  // Runs rank 1, which is stopped while it stores the result of its slice in the memory of all
  // ranks.
  int run_stopped_rank(Engine& engine, SharedTensor& tensor) {
    const StopAtAccess failpoint(tensor.data() + kCount / 2);
    const Status status = finish(engine, engine.submit(tensor.allreduce("all"))).status;
    shared_->has_resumed = true;
    return exit_code_for(status, "rank 2 (pid ");
  }

  // After its call has failed, this rank stores new values. The stopped rank must not change these
  // values when it continues.
  int refill(SharedTensor& tensor, float value) {
    tensor.fill(value);
    ++shared_->stage;
    if (!wait_until([&] { return shared_->has_resumed.load(); })) return 3;
    return tensor.count_not_equal(value) == 0 ? kPassed : 4;
  }

  // Lets the stopped rank continue at the end of the scope, also after an early return.
  struct ContinueGuard {
    const SharedByProcesses* shared;
    ~ContinueGuard() {
      if (shared->pids[1] > 0) ::kill(shared->pids[1], SIGCONT);
    }
  };

  int run_survivor(Engine& engine, SharedTensor& tensor, bool other_rank_leaves) {
    const auto handle = engine.submit(tensor.allreduce("all"));
    const ContinueGuard continue_guard{shared_};
    if (!wait_until([&] { return is_stopped(shared_->pids[1]); })) return 2;
    ++shared_->stage;  // lets rank 2 leave
    if (!other_rank_leaves) ::kill(shared_->pids[2], SIGKILL);
    if (const int result = exit_code_for(finish(engine, handle).status, "rank 2 (pid ");
        result != kPassed)
      return result;
    if (other_rank_leaves && !wait_until([&] { return shared_->stage == 2; })) return 5;
    std::thread resumer([&, stage_before = shared_->stage.load()] {
      wait_until([&] { return shared_->stage > stage_before; });
      ::kill(shared_->pids[1], SIGCONT);
    });
    const int result = refill(tensor, 7);
    resumer.join();
    return result;
  }

  int run_ending_rank(Engine& engine, SharedTensor& tensor, bool leaves_job) {
    const auto handle = engine.submit(tensor.allreduce("all"));
    if (!wait_until([&] { return shared_->stage == 1; })) return 2;
    if (!leaves_job)
      return finish(engine, handle).status.ok() ? 6 : 7;  // rank 0 kills this rank during the wait
    (void)engine.shutdown("enough");
    return refill(tensor, 9);
  }

  int fill_all_memory_of_the_next_engine(Engine& engine, SharedTensor& tensor) {
    const SharedTensor other_tensor(engine, 100'000);
    const auto handle = engine.submit(tensor.allreduce("all"));
    const ContinueGuard continue_guard{shared_};
    if (!wait_until([&] { return is_stopped(shared_->pids[1]); })) return 2;
    ::kill(shared_->pids[2], SIGKILL);
    if (const int result = exit_code_for(finish(engine, handle).status, "rank 2 (pid ");
        result != kPassed)
      return result;
    (void)engine.shutdown("enough");
    EngineOptions single_rank_options;
    single_rank_options.context = context_in_test();
    single_rank_options.bucket_bytes = 0;
    single_rank_options.heap_bytes = 64 << 20;
    const auto next_engine = value_or_abort(Engine::create(single_rank_options));
    if (!next_engine->is_shared(other_tensor.data(), 1) || next_engine->is_shared(tensor.data(), 1))
      return 9;
    tensor = SharedTensor(*next_engine, kCount);  // frees the old memory
    std::vector<SharedTensor> filler_tensors;
    do {
      filler_tensors.emplace_back(*next_engine, kCount / 64);
      filler_tensors.back().fill(8);
    } while (next_engine->is_shared(filler_tensors.back().data(), 1));
    if (!next_engine->is_shared(tensor.data(), 1) || filler_tensors.size() < 2 * 64) return 10;
    ::kill(shared_->pids[1], SIGCONT);
    if (!wait_until([&] { return shared_->has_resumed.load(); })) return 3;
    for (const SharedTensor& filler_tensor : filler_tensors)
      if (filler_tensor.count_not_equal(8) != 0) return 11;
    return tensor.count_not_equal(0) == 0 ? kPassed : 4;
  }

  int reduce_as_pair(Engine& engine, SharedTensor& tensor) {
    tensor.fill(static_cast<float>(engine.topology().rank + 3));
    const Status status = finish(engine, engine.submit(tensor.allreduce("pair", 1))).status;
    if (!status.ok()) std::fprintf(stderr, "the pair: %s\n", status.message().c_str());
    return status.ok() && tensor.count_not_equal(7) == 0 ? kPassed : 8;
  }

  SharedByProcesses* shared_;
};

class StoppedSurvivor : public MemoryOfAStoppedSurvivor,
                        public ::testing::WithParamInterface<bool> {};

TEST_P(StoppedSurvivor, DoesNotWriteToReturnedMemory) {
  const bool leaves_job = GetParam();
  const auto statuses = run_processes(
      3,
      [&](int rank, Engine& engine) {
        shared_->pids[rank] = ::getpid();
        SharedTensor tensor(engine, kCount);
        tensor.fill(1);
        if (rank == 2) return run_ending_rank(engine, tensor, leaves_job);
        const int result =
            rank == 1 ? run_stopped_rank(engine, tensor) : run_survivor(engine, tensor, leaves_job);
        return result == kPassed && leaves_job ? reduce_as_pair(engine, tensor) : result;
      },
      {{0, 1}});
  for (std::size_t rank = 0; rank < statuses.size(); ++rank)
    EXPECT_TRUE(WEXITSTATUS(statuses[rank]) == kPassed || (rank == 2 && !leaves_job))
        << "rank " << rank << " ended with " << WEXITSTATUS(statuses[rank]);
}

// The next engine of the process reuses the heap, but not the memory to which the stopped rank may
// write.
TEST_F(MemoryOfAStoppedSurvivor, IsNotGivenToTheNextEngine) {
  const auto statuses = run_processes(3, [&](int rank, Engine& engine) {
    shared_->pids[rank] = ::getpid();
    SharedTensor tensor(engine, kCount);
    tensor.fill(1);
    if (rank == 2) return run_ending_rank(engine, tensor, false);
    if (rank == 1) return run_stopped_rank(engine, tensor);
    ++shared_->stage;
    return fill_all_memory_of_the_next_engine(engine, tensor);
  });
  for (const std::size_t rank : {0U, 1U})
    EXPECT_EQ(WEXITSTATUS(statuses[rank]), kPassed) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(WhileRank2, StoppedSurvivor, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "leaves" : "dies"; });

}  // namespace
}  // namespace farandole
