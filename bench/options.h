// What a benchmark program is asked. The same words for ours and for the peers'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole::bench {

struct BenchOptions {
  std::string operation = "allreduce";  // of kOperations; "memcpy" where the program knows it
  int ranks = 2;                        // MPI: given by its launcher
  // Bytes of the tensor; of an all-gather the whole result, of a reduce-scatter the whole input.
  std::vector<std::size_t> sizes = {};
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;  // or kAdasum, of allreduce
  bool heap = false;                    // memory that the peers map; else ordinary memory
  bool consume = false;                 // the result is read inside the timed region
  bool tight = false;        // many calls in a row are timed, without a barrier between them
  bool in_place = false;     // allreduce, broadcast
  bool pin = false;          // rank i to the i-th core, modulo the cores
  bool json = false;         // a list of objects instead of a table
  double seconds = 0.1;      // time for each size, about
  std::string library = {};  // whom the results are of
};

// Ends the program when the words make no sense, or with the help text.
BenchOptions parse_options(int count, char** words, BenchOptions defaults);

}  // namespace farandole::bench
