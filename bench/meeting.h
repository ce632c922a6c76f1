// Meeting: what the ranks of a benchmark share beside the thing that they measure: a barrier before
// every repetition, and the table of their times. The same code for us and for the peers, so that
// the way of measuring favours nobody.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace farandole::bench {

inline constexpr int kRanksMax = 64;
inline constexpr int kRepetitionsMax = 20'000;

// Lies in shared memory that starts as zero bytes.
class Meeting {
 public:
  // Everybody comes before anybody goes. Spins only where each rank has a core of its own.
  void barrier(int ranks, bool own_core);

  // Rank 0 decides before a barrier, the others read after it.
  std::atomic<std::uint32_t> repetitions_left{};
  std::array<std::atomic<std::uint64_t>, kRanksMax> wrong{};  // results that were not as expected
  std::array<std::array<float, kRepetitionsMax>, kRanksMax> nanoseconds{};

 private:
  std::atomic<std::uint32_t> arrived_{};
  alignas(128) std::atomic<std::uint32_t> turn_{};
  alignas(128) std::atomic<std::uint32_t> sleepers_{};
};

}  // namespace farandole::bench
