// measure(): repeats an operation and checks every result. Before each repetition, the ranks
// rewrite their inputs. The result has the time of the slowest rank in each repetition.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "options.h"
#include "shape.h"
#include "shared_results.h"

namespace farandole::bench {

// The measured call; it returns when the operation is complete. If the call is in place, input and
// output are the same memory.
using Call = std::function<void(const Shape&, const std::byte* input, std::byte* output)>;
// Returns 128-byte-aligned memory of the kind that BenchOptions::heap selects.
using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

struct BenchRank {
  int rank = 0;
  int ranks = 1;
  SharedResults* shared_results = nullptr;
};

// Measures the call for all sizes of the options. Rank 0 writes the times to standard output.
// Returns whether all results were right. Collective: all ranks must call it with equal options.
bool measure(const BenchOptions& options, const BenchRank& bench_rank, const Call& call,
             const Allocate& allocate);

// Allocates untouched pages. So the first rank that writes to a page determines the memory node of
// this page.
std::shared_ptr<std::byte> allocate_ordinary(std::size_t bytes);
// Pins this process to core number `rank` of the usable cores, modulo the number of these cores.
void pin_to_core(int rank);

}  // namespace farandole::bench
