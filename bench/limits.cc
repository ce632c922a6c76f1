// Measures the limits of the machine. `limits memcpy` measures copies in the same way as an
// operation: all ranks copy memory of their own at the same time. `limits pingpong` passes a cache
// line between two cores and prints the nanoseconds of a round trip.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/platform.h"
#include "measure.h"
#include "ranks.h"

namespace farandole::bench {
namespace {

struct CacheLine {
  alignas(128) std::atomic<std::uint64_t> counter;
};

int ping_pong() {
  constexpr std::uint64_t kRounds = 20'000;
  const auto segment = Segment::create("bench-table", sizeof(CacheLine)).value();
  auto& counter = reinterpret_cast<CacheLine*>(segment->data())->counter;
  const bool good = run_in_processes(2, [&counter](int rank) {
    pin_to_core(rank);
    const auto rank_turn = static_cast<std::uint64_t>(rank);
    auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      if (round == kRounds / 2) begin = std::chrono::steady_clock::now();
      while (counter.load() != 2 * round + rank_turn) cpu_pause();
      counter.store(2 * round + rank_turn + 1);
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    if (rank == 0) std::printf("{\"ping_pong_ns\": %.1f}\n", time.count() * 2 / kRounds);
    std::fflush(stdout);
    return true;
  });
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int measure_copies(int count, char** words) {
  const BenchOptions options =
      parse_options(count, words, {.operation = "memcpy", .pin = true, .library = "memcpy"});
  const auto shared_results = Segment::create("bench-shared", sizeof(SharedResults)).value();
  const bool good = run_in_processes(options.ranks, [&](int rank) {
    const BenchRank bench_rank = {rank, options.ranks,
                                  reinterpret_cast<SharedResults*>(shared_results->data())};
    const Call call = [](const Shape& shape, const std::byte* input, std::byte* output) {
      std::memcpy(output, input, shape.bytes);
    };
    return measure(options, bench_rank, call, allocate_ordinary);
  });
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** words) {
  if (count == 2 && std::string_view(words[1]) == "pingpong") return farandole::bench::ping_pong();
  return farandole::bench::measure_copies(count, words);
}
