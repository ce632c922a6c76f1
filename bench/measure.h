// measure(): repeats an operation on memory that its owner has just rewritten, checks every result,
// and keeps for each repetition the time of the slowest rank.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "meeting.h"
#include "options.h"
#include "pattern.h"

namespace farandole::bench {

// What is measured: runs to the end. Input and output are the same memory when in place.
using Call = std::function<void(const Shape&, const std::byte* input, std::byte* output)>;
// Memory of the kind that the options ask for, 128-byte-aligned.
using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

struct Place {
  int rank = 0;
  int ranks = 1;
  Meeting* meeting = nullptr;
};

// Writes the results to standard output when it is rank 0. Returns whether all were as expected.
// Collective: all ranks call it with equal options.
bool measure(const BenchOptions& options, const Place& place, const Call& call,
             const Allocate& allocate);

// Pages that are touched for the first time by whoever writes them.
std::shared_ptr<std::byte> allocate_ordinary(std::size_t bytes);
// To the rank-th of the cores that this process may use, modulo their number.
void pin_to_core(int rank);

}  // namespace farandole::bench
