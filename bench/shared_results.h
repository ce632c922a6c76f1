// SharedResults: memory that the ranks of a benchmark share. It does not use the library that is
// measured. It has a barrier for the start of every repetition, and a table of the repetitions'
// times. All libraries are measured with this code, so that the method favours none of them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace farandole::bench {

inline constexpr int kRanksMax = 64;
inline constexpr int kRepetitionsMax = 20'000;

// Lives in shared memory that was filled with zeros.
class SharedResults {
 public:
  // Returns when all ranks have called it. Spins only if each rank has a core of its own.
  void barrier(int ranks, bool has_own_core);

  // Whether another repetition follows. Rank 0 writes this flag before a barrier, and the other
  // ranks read the flag after that barrier.
  std::atomic<std::uint32_t> has_next_repetition{};
  std::array<std::atomic<std::uint64_t>, kRanksMax> wrong{};  // wrong results of each rank
  std::array<std::array<float, kRepetitionsMax>, kRanksMax> nanoseconds{};

 private:
  std::atomic<std::uint32_t> arrived_{};
  alignas(128) std::atomic<std::uint32_t> generation_{};
  alignas(128) std::atomic<std::uint32_t> sleepers_{};
};

}  // namespace farandole::bench
