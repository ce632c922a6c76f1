// The options of a benchmark program. Our programs and those of the peers have the same options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"

namespace farandole::bench {

struct BenchOptions {
  std::string operation = "allreduce";  // or "memcpy", in some of the programs
  int ranks = 2;                        // MPI programs ask MPI for this number instead
  // The bytes of the tensor. For an all-gather this is the whole result, and for a reduce-scatter
  // the whole input.
  std::vector<std::size_t> sizes = {};
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;  // kAdasum: only for allreduce
  bool heap = false;      // use memory that the other ranks can map; otherwise ordinary memory
  bool consume = false;   // read the result, and count this time, too
  bool tight = false;     // time many calls in a row without a barrier between them
  bool in_place = false;  // only for allreduce and broadcast
  bool pin = false;       // pin rank i to core i, modulo the number of cores
  bool json = false;      // print a list of objects instead of a table
  double seconds = 0.1;   // approximate time for each size
  // The number of calls into which the tensor is split. Programs that cannot split it keep 0 and
  // have no option --pieces.
  std::size_t pieces = 0;
  bool grouped = false;      // submit the pieces as one batch
  bool completions = false;  // use a completion for each piece, instead of waiting for its handle
  std::string library = {};  // the name of the measured library
};

// Ends the program if the options are invalid, or after printing the help text.
BenchOptions parse_options(int count, char** words, BenchOptions defaults);

}  // namespace farandole::bench
