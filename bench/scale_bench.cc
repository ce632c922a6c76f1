// Measures the costs that grow with the number of ranks. There may be many more ranks than cores.
// The costs are the time from the start of a job to the end of its first barrier, the time of a
// small allreduce, and the processor time of ranks that only wait. Prints a row of a table for each
// given number of ranks.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "farandole/engine.h"
#include "job.h"
#include "shared_results.h"
#include "transport/shm/segment.h"

namespace farandole::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLimit = std::chrono::minutes(5);
constexpr auto kSettleTime = std::chrono::seconds(1);       // then all ranks except 0 wait
constexpr auto kIdleMeasureTime = std::chrono::seconds(2);  // how long an idle job is measured
constexpr int kRanksMax = 1024;
constexpr int kWarmUpCalls = 50;
constexpr int kCalls = 200;

struct SharedCounters {
  SharedResults results;  // we only use the barrier in it
  std::array<std::atomic<pid_t>, kRanksMax> pids;
  std::atomic<std::int64_t> sleeps;  // of all ranks together, during kCalls calls
};

double seconds_of(clockid_t clock) {
  timespec time{};
  CHECK(::clock_gettime(clock, &time) == 0, "a rank of the benchmark runs until its end");
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class Rank {
 public:
  Rank(int rank, int ranks, SharedCounters& shared) : rank_(rank), ranks_(ranks), shared_(shared) {}

  bool run(int rendezvous) {
    shared_.pids[static_cast<std::size_t>(rank_)] = ::getpid();
    barrier();
    const double processor_time = processor_time_of_all();
    const auto begin = Clock::now();
    if (!start(rendezvous)) return false;
    barrier();
    const double creation_ms = milliseconds_since(begin);
    call(Operation::kBarrier, kWorld);
    barrier();
    const double first_barrier_ms = milliseconds_since(begin);
    const double formation_processor_s = processor_time_of_all() - processor_time;
    std::string row = format_text("| {:5} | {:7.0f} | {:13.0f} | {:17.2f} |", ranks_, creation_ms,
                                  first_barrier_ms, formation_processor_s);
    row += measure_group();
    row += measure_allreduce();
    for (const Idle idle : {Idle::kBetweenCalls, Idle::kWaiting, Idle::kSubmitted})
      row += format_text(" {:7.3f} |", measure_idle(idle));
    if (rank_ == 0) std::puts(row.c_str());
    std::fflush(stdout);
    barrier();
    return true;
  }

 private:
  enum class Idle { kBetweenCalls, kWaiting, kSubmitted };

  void barrier() { shared_.results.barrier(ranks_, false); }

  bool start(int rendezvous) {
    EngineOptions options;
    options.topology = {.rank = rank_, .size = ranks_, .local_rank = rank_, .local_size = ranks_};
    options.rendezvous_descriptor = rendezvous;
    options.bucket_bytes = 0;
    auto engine = Engine::create(std::move(options));
    if (engine.ok())
      engine_ = *std::move(engine);
    else
      std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return engine_ != nullptr;
  }

  Submission submission(Operation operation, GroupId group) {
    Submission submission;
    submission.operation = operation;
    submission.group = group;
    submission.name = "scale";
    if (operation == Operation::kBarrier) return submission;
    submission.dtype = DType::kFloat32;
    submission.shape = {2};
    submission.input = input_.data();
    submission.output = output_.data();
    return submission;
  }

  void call(Operation operation, GroupId group) {
    const Handle handle = engine_->submit(submission(operation, group), kLimit).value();
    finish(handle);
  }

  void finish(Handle handle) {
    CHECK(engine_->wait(handle, kLimit), "a call of a benchmark ends soon");
    CHECK(engine_->take(handle).status.ok(), "nobody leaves a benchmark early");
  }

  double processor_time_of_all() const {
    double sum = 0;
    for (int rank = 0; rank_ == 0 && rank < ranks_; ++rank) {
      clockid_t clock{};
      const pid_t pid = shared_.pids[static_cast<std::size_t>(rank)];
      CHECK(::clock_getcpuclockid(pid, &clock) == 0, "a rank of the benchmark runs until its end");
      sum += seconds_of(clock);
    }
    return sum;
  }

  std::string measure_group() {
    if (ranks_ < 2) return {};
    std::vector<int> members;
    for (int rank = 1; rank < ranks_; ++rank) members.push_back(rank);
    barrier();
    const auto begin = Clock::now();
    const GroupId group = engine_->add_group(members).value();
    if (rank_ > 0) call(Operation::kBarrier, group);
    barrier();
    const double milliseconds = milliseconds_since(begin);
    CHECK(engine_->remove_group(group).ok(), "nobody leaves a benchmark early");
    return format_text(" {:9.1f} |", milliseconds);
  }

  std::string measure_allreduce() {
    for (int i = 0; i < kWarmUpCalls; ++i) call(Operation::kAllreduce, kWorld);
    barrier();
    const double processor_time = processor_time_of_all();
    const std::int64_t sleeps = sleeps_of_this_rank();
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) call(Operation::kAllreduce, kWorld);
    shared_.sleeps += sleeps_of_this_rank() - sleeps;
    barrier();
    const auto sum = static_cast<float>(ranks_);  // exact, because ranks_ <= kRanksMax
    CHECK((output_ == std::array{sum, 2 * sum}), "the result of the allreduce is right");
    return format_text(" {:9.1f} | {:12.1f} | {:11.2f} |", 1e3 * milliseconds_since(begin) / kCalls,
                       1e6 * (processor_time_of_all() - processor_time) / kCalls / ranks_,
                       static_cast<double>(shared_.sleeps) / kCalls / ranks_);
  }

  static std::int64_t sleeps_of_this_rank() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  }

  // Returns how many milliseconds of processor time all ranks together use in a second in which
  // rank 0 makes no call.
  double measure_idle(Idle idle) {
    barrier();
    Handle handle = 0;
    if (rank_ > 0 && idle != Idle::kBetweenCalls)
      handle = engine_->submit(submission(Operation::kAllreduce, kWorld)).value();
    if (rank_ > 0 && idle == Idle::kWaiting) finish(handle);
    double used = 0;
    if (rank_ == 0) {
      std::this_thread::sleep_for(kSettleTime);
      used = -processor_time_of_all();
      std::this_thread::sleep_for(kIdleMeasureTime);
      used += processor_time_of_all();
    } else if (idle != Idle::kWaiting) {
      std::this_thread::sleep_for(kIdleMeasureTime + 2 * kSettleTime);
    }
    if (rank_ == 0 && idle != Idle::kBetweenCalls)
      handle = engine_->submit(submission(Operation::kAllreduce, kWorld)).value();
    if (idle == Idle::kSubmitted || (rank_ == 0 && idle == Idle::kWaiting)) finish(handle);
    return 1e3 * used / std::chrono::duration<double>(kIdleMeasureTime).count();
  }

  int rank_;
  int ranks_;
  SharedCounters& shared_;
  std::unique_ptr<Engine> engine_;
  std::array<float, 2> input_{1, 2};
  std::array<float, 2> output_{};
};

int run(const std::vector<int>& rank_counts) {
  std::puts(
      "| ranks | created | first barrier | processor time, s | new group | allreduce "
      "| processor µs | sleeps/call | between | waiting | submitted |");
  std::fflush(stdout);
  for (const int ranks : rank_counts) {
    const auto memory = Segment::create("bench-shared", sizeof(SharedCounters)).value();
    auto& shared = *reinterpret_cast<SharedCounters*>(memory->data());
    const bool good = run_in_job(
        ranks, [&](int rank, int rendezvous) { return Rank(rank, ranks, shared).run(rendezvous); });
    if (!good) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** words) {
  CLI::App app("Measures what grows with the number of ranks");
  std::vector<int> rank_counts;
  app.add_option("ranks", rank_counts, "Processes of each job")
      ->required()
      ->check(CLI::Range(2, 512));
  CLI11_PARSE(app, count, words);
  return farandole::bench::run(rank_counts);
}
