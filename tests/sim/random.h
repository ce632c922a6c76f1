// Random: all randomness of a simulation. A seed gives the same numbers on every machine, which the
// distributions of <random> do not promise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace farandole::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t value = state_;
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31U);
  }
  // Returns 0 … count − 1.
  int below(int count) { return static_cast<int>(next() % static_cast<std::uint64_t>(count)); }
  // Returns first … last, inclusive.
  int between(int first, int last) { return first + below(last - first + 1); }
  bool chance(int percent) { return below(100) < percent; }

  template <class T>
  const T& pick(const std::vector<T>& values) {
    return values[next() % values.size()];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t count = values.size(); count > 1; --count)
      std::swap(values[count - 1], values[next() % count]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace farandole::sim
