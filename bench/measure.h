// measure(): repeats an operation on memory that its owner has just rewritten and checks every
// result. For each repetition, it records the time of the slowest rank.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "options.h"
#include "shape.h"
#include "shared_results.h"

namespace farandole::bench {

// The measured call; it returns when the operation is complete. In place, input and output are the
// same memory.
using Call = std::function<void(const Shape&, const std::byte* input, std::byte* output)>;
// Returns memory of the kind that the options ask for, 128-byte-aligned.
using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

struct BenchRank {
  int rank = 0;
  int ranks = 1;
  SharedResults* shared_results = nullptr;
};

// Measures, and writes the results to standard output on rank 0. Returns whether all results were
// right. Collective: all ranks must call it with equal options.
bool measure(const BenchOptions& options, const BenchRank& bench_rank, const Call& call,
             const Allocate& allocate);

// Allocates pages that nothing has touched, so the first writer places them.
std::shared_ptr<std::byte> allocate_ordinary(std::size_t bytes);
// Pins this process to core number `rank` of those that it may use, modulo their number.
void pin_to_core(int rank);

}  // namespace farandole::bench
