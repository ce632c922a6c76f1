#include "measure.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/format.h"

namespace farandole::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Roughly the size of an L2 cache. For larger tensors there are several buffers, which the
// repetitions use in turn.
constexpr std::size_t kCacheBytes = 1 << 20;
constexpr std::size_t kBuffers = 3;
// The first calls do not count, because they touch memory that is in no cache yet. For small
// messages, we skip the same number of calls as the OSU benchmarks; for large messages, we skip
// fewer.
constexpr std::size_t kWarmUpBytes = 16 << 20;
constexpr std::size_t kWarmUpsMin = 3, kWarmUpsMax = 200;
constexpr int kRepetitionsMin = 5;
constexpr std::size_t kLargeBytes = 32 << 20;  // larger tensors need fewer repetitions
constexpr int kLargeRepetitionsMin = 3;
constexpr std::size_t kTightBytes = 4 << 20;  // roughly the bytes that a --tight repetition moves
constexpr std::size_t kTightCallsMax = 2000;
// If ranks share cores, fewer calls are allowed, because then each call may take 8 ms.
constexpr std::size_t kTightCallsMaxOnSharedCores = 50;

struct SizeResult {
  std::size_t bytes;
  std::vector<float> nanoseconds;  // ascending
  bool verified;
};

struct Buffers {
  std::vector<std::shared_ptr<std::byte>> inputs, outputs;  // no other objects own this memory
};

// Reads every byte once, like a program that uses the result. Only the memory limits the speed.
std::uint64_t read_all(const std::byte* memory, std::size_t bytes) {
  std::uint64_t sum = 0;
  std::size_t begin = 0;
  for (; begin + sizeof(sum) <= bytes; begin += sizeof(sum)) {
    std::uint64_t word = 0;
    std::memcpy(&word, memory + begin, sizeof(word));
    sum += word;
  }
  for (; begin < bytes; ++begin) sum += static_cast<std::uint64_t>(memory[begin]);
  return sum;
}

// Changes one byte in every 4 KiB of the output, so that the check of the result fails if a call
// writes nothing.
void overwrite_a_byte_per_page(std::byte* memory, std::size_t bytes) {
  constexpr std::size_t kStep = 4096;
  for (std::size_t at = 0; at < bytes; at += kStep) memory[at] = std::byte{0xFF};
}

class Measurement {
 public:
  Measurement(const BenchOptions& options, const BenchRank& bench_rank, const Call& call,
              const Allocate& allocate)
      : options_(options),
        bench_rank_(bench_rank),
        call_(call),
        allocate_(allocate),
        pattern_(options.dtype, bench_rank.ranks),
        has_own_core_(bench_rank.ranks <= static_cast<int>(std::thread::hardware_concurrency())) {}

  SizeResult measure_size(std::size_t bytes) {
    const auto bytes_of_row =
        row_of(options_.dtype).bytes * static_cast<std::size_t>(bench_rank_.ranks);
    const bool is_split = options_.operation != "allreduce" && options_.operation != "broadcast" &&
                          options_.operation != "memcpy";
    const auto unit = is_split ? bytes_of_row : row_of(options_.dtype).bytes;
    shape_ = {.operation = options_.operation,
              .bytes = (bytes + unit - 1) / unit * unit,
              .ranks = bench_rank_.ranks,
              .rank = bench_rank_.rank,
              .element_bytes = row_of(options_.dtype).bytes,
              .adasum = options_.reduce_op == ReduceOp::kAdasum};
    make_buffers();
    const std::uint64_t wrong_before = bench_rank_.shared_results->wrong[index()].load();
    const int repetitions = repeat();
    const std::uint64_t wrong = bench_rank_.shared_results->wrong[index()].load() - wrong_before;
    return {bytes, times_of_slowest_ranks(repetitions), wrong == 0};
  }

 private:
  std::size_t index() const { return static_cast<std::size_t>(bench_rank_.rank); }

  void make_buffers() {
    buffers_ = {};
    const std::size_t count = shape_.bytes > kCacheBytes ? kBuffers : 1;
    for (std::size_t buffer = 0; buffer < count; ++buffer) {
      buffers_.inputs.push_back(allocate_(shape_.input_bytes()));
      std::memset(buffers_.inputs.back().get(), 0, shape_.input_bytes());
      buffers_.outputs.push_back(options_.in_place ? buffers_.inputs.back()
                                                   : allocate_(shape_.output_bytes()));
      std::memset(buffers_.outputs.back().get(), 0, shape_.output_bytes());
    }
  }

  // Runs one repetition and returns its nanoseconds per call.
  double repeat_once(std::uint64_t number, std::size_t calls) {
    const std::size_t buffer = number % buffers_.inputs.size();
    std::byte* const input = buffers_.inputs[buffer].get();
    std::byte* const output = buffers_.outputs[buffer].get();
    const std::uint64_t first = number * 17;
    if (!options_.in_place) overwrite_a_byte_per_page(output, shape_.output_bytes());
    if (options_.operation != "broadcast" || bench_rank_.rank == 0 || !options_.in_place)
      pattern_.write(input, shape_.input_bytes(), shape_.source(), first);
    bench_rank_.shared_results->barrier(bench_rank_.ranks, has_own_core_);
    const auto begin = SteadyClock::now();
    for (std::size_t i = 0; i < calls; ++i) call_(shape_, input, output);
    if (options_.consume) consumed_ = consumed_ + read_all(output, shape_.output_bytes());
    const auto end = SteadyClock::now();
    if (!is_expected(pattern_, shape_, output, first)) ++bench_rank_.shared_results->wrong[index()];
    return std::chrono::duration<double, std::nano>(end - begin).count() /
           static_cast<double>(calls);
  }

  // Repeats the operation, and returns how many repetitions count for the result.
  int repeat() {
    const std::size_t calls_max = has_own_core_ ? kTightCallsMax : kTightCallsMaxOnSharedCores;
    const std::size_t calls =
        options_.tight ? std::clamp<std::size_t>(kTightBytes / shape_.bytes, 4, calls_max) : 1;
    const auto warm_ups = static_cast<int>(std::clamp(
        kWarmUpBytes / std::max<std::size_t>(1, shape_.bytes * calls), kWarmUpsMin, kWarmUpsMax));
    const int repetitions_min = shape_.bytes > kLargeBytes ? kLargeRepetitionsMin : kRepetitionsMin;
    SharedResults& shared_results = *bench_rank_.shared_results;
    const auto begin = SteadyClock::now();
    auto counted_begin = begin;
    for (int number = 0;; ++number) {
      const int counted_repetitions = number - warm_ups;
      if (counted_repetitions == 0) counted_begin = SteadyClock::now();
      if (bench_rank_.rank == 0) {
        const std::chrono::duration<double> elapsed = SteadyClock::now() - counted_begin;
        const bool is_enough =
            counted_repetitions >= repetitions_min && elapsed.count() > options_.seconds;
        shared_results.has_next_repetition.store(!is_enough &&
                                                 counted_repetitions < kRepetitionsMax);
      }
      shared_results.barrier(bench_rank_.ranks, has_own_core_);
      if (shared_results.has_next_repetition.load() == 0) return counted_repetitions;
      const double nanoseconds = repeat_once(static_cast<std::uint64_t>(number), calls);
      if (counted_repetitions >= 0)
        shared_results.nanoseconds[index()][static_cast<std::size_t>(counted_repetitions)] =
            static_cast<float>(nanoseconds);
    }
  }

  std::vector<float> times_of_slowest_ranks(int repetitions) {
    bench_rank_.shared_results->barrier(bench_rank_.ranks, has_own_core_);
    std::vector<float> times(static_cast<std::size_t>(repetitions));
    for (std::size_t repetition = 0; repetition < times.size(); ++repetition)
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(bench_rank_.ranks); ++rank)
        times[repetition] =
            std::max(times[repetition], bench_rank_.shared_results->nanoseconds[rank][repetition]);
    std::sort(times.begin(), times.end());
    bench_rank_.shared_results->barrier(bench_rank_.ranks, has_own_core_);
    return times;
  }

  const BenchOptions& options_;
  const BenchRank& bench_rank_;
  const Call& call_;
  const Allocate& allocate_;
  BenchPattern pattern_;
  bool has_own_core_;
  Shape shape_;
  Buffers buffers_;
  volatile std::uint64_t consumed_ = 0;
};

// Returns the smallest number of bytes that each rank must move for one byte of the tensor, as in
// nccl-tests. With this factor, results for different numbers of ranks can be compared.
double bus_factor(const BenchOptions& options, int ranks) {
  const double share_of_others = static_cast<double>(ranks - 1) / ranks;
  if (options.operation == "allreduce") return 2 * share_of_others;
  return options.operation == "broadcast" || options.operation == "memcpy" ? 1 : share_of_others;
}

float percentile(const std::vector<float>& ascending, double share) {
  const auto last = static_cast<double>(ascending.size() - 1);
  return ascending[static_cast<std::size_t>(share * last + 0.5)];
}

std::string row_of_result(const BenchOptions& options, const BenchRank& bench_rank,
                          const SizeResult& result) {
  const double p50 = static_cast<double>(percentile(result.nanoseconds, 0.5));
  const double p99 = static_cast<double>(percentile(result.nanoseconds, 0.99));
  const double algbw = static_cast<double>(result.bytes) / p50;
  const double busbw = algbw * bus_factor(options, bench_rank.ranks);
  if (!options.json)
    return format_text("{:>11} {:>12.3f} {:>12.3f} {:>10.3f} {:>10.3f} {:>8} {}\n", result.bytes,
                       p50 / 1e3, p99 / 1e3, algbw, busbw, result.nanoseconds.size(),
                       result.verified ? "yes" : "WRONG");
  return format_text(
      R"({{"library": "{}", "operation": "{}", "bytes": {}, "ranks": {}, "dtype": "{}", )"
      R"("memory": "{}", "consume": {}, "tight": {}, "in_place": {}, "repetitions": {}, )"
      R"("p50_us": {:.4f}, "p99_us": {:.4f}, "algbw_gbps": {:.4f}, "busbw_gbps": {:.4f}, )"
      R"("verified": {}}})",
      options.library, options.operation, result.bytes, bench_rank.ranks,
      row_of(options.dtype).name, options.heap ? "heap" : "ordinary", options.consume,
      options.tight, options.in_place, result.nanoseconds.size(), p50 / 1e3, p99 / 1e3, algbw,
      busbw, result.verified);
}

void print_now(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

bool measure(const BenchOptions& options, const BenchRank& bench_rank, const Call& call,
             const Allocate& allocate) {
  if (options.pin) pin_to_core(bench_rank.rank);
  Measurement measurement(options, bench_rank, call, allocate);
  const bool prints = bench_rank.rank == 0;
  bool good = true;
  if (prints && !options.json)
    print_now(
        format_text("{} {} {} ranks {}{}\n{:>11} {:>12} {:>12} {:>10} {:>10} {:>8} verified\n",
                    options.library, options.operation, bench_rank.ranks,
                    row_of(options.dtype).name, options.consume ? " consume" : "", "bytes",
                    "p50 us", "p99 us", "algbw GB/s", "busbw GB/s", "repeats"));
  const char* separator = "[";
  for (const std::size_t bytes : options.sizes) {
    SizeResult result = measurement.measure_size(bytes);
    for (int rank = 0; rank < bench_rank.ranks; ++rank)
      result.verified &=
          bench_rank.shared_results->wrong[static_cast<std::size_t>(rank)].load() == 0;
    good &= result.verified;
    if (prints && options.json) print_now(std::exchange(separator, ",\n"));
    if (prints) print_now(row_of_result(options, bench_rank, result));
  }
  if (prints && options.json) print_now("]\n");
  return good;
}

std::shared_ptr<std::byte> allocate_ordinary(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t rounded_bytes = (bytes + kPage - 1) / kPage * kPage;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPage, rounded_bytes));
  return {memory, std::free};
}

void pin_to_core(int rank) {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  int cores_to_skip = rank % CPU_COUNT(&usable);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || cores_to_skip-- != 0) continue;
    cpu_set_t single_core;
    CPU_ZERO(&single_core);
    CPU_SET(core, &single_core);
    (void)::sched_setaffinity(0, sizeof(single_core), &single_core);
    return;
  }
}

}  // namespace farandole::bench
