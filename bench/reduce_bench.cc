// Measures reduce() alone on one core, with each instruction set of this processor, on memory that
// was just used. Prints a JSON list; "GB/s" is how fast one input was read in the fastest call. The
// first argument is the number of inputs of a sum, 2 by default. The second is the number of
// outputs that get the sum, 1 by default.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/cpu/reduce.h"

namespace farandole::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Buffers = std::vector<std::vector<std::byte>>;

constexpr std::array kSizes = {16L << 10, 64L << 10, 256L << 10, 1L << 20, 16L << 20};
constexpr std::array kMeasuredDTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                        DType::kFloat64, DType::kInt32,    DType::kInt64};

// Returns buffers filled with a bit pattern that is an ordinary number in each dtype.
Buffers filled_buffers(std::size_t buffers, long bytes) {
  return Buffers(buffers, std::vector<std::byte>(static_cast<std::size_t>(bytes), std::byte{0x3c}));
}

double best_rate(const InstructionSet& instruction_set, DType dtype, const Buffers& inputs,
                 Buffers& outputs) {
  std::vector<const std::byte*> read;
  std::vector<std::byte*> written;
  for (const auto& input : inputs) read.push_back(input.data());
  for (auto& output : outputs) written.push_back(output.data());
  const auto bytes = static_cast<double>(inputs[0].size());
  const auto count = static_cast<std::int64_t>(inputs[0].size() / row_of(dtype).bytes);
  const int calls = std::max(1, static_cast<int>((256 << 10) / bytes));
  double best = 1e9;
  const auto end = Clock::now() + std::chrono::milliseconds(50);
  for (auto start = Clock::now(); start < end; start = Clock::now()) {
    for (int call = 0; call < calls; ++call)
      reduce_with(instruction_set, {.dtype = dtype}, read, written, count);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / calls);
  }
  return bytes / best / 1e9;
}

int run(std::size_t inputs, std::size_t outputs) {
  const char* separator = "[";
  for (const InstructionSet& instruction_set : instruction_sets()) {
    for (const DType dtype : kMeasuredDTypes) {
      for (const long bytes : kSizes) {
        const Buffers read = filled_buffers(inputs, bytes);
        Buffers written = filled_buffers(outputs, bytes);
        std::printf(R"(%s{"set": "%s", "dtype": "%s", "inputs": %zu, "outputs": %zu, )", separator,
                    instruction_set.name, row_of(dtype).name.data(), inputs, outputs);
        std::printf(R"("bytes": %ld, "GB/s": %.1f})", bytes,
                    best_rate(instruction_set, dtype, read, written));
        separator = ",\n ";
      }
    }
  }
  std::printf("]\n");
  return EXIT_SUCCESS;
}

std::size_t argument_or(std::size_t default_value, int count, char** words, int index) {
  const int given = count > index ? std::atoi(words[index]) : 0;
  return given > 0 ? static_cast<std::size_t>(given) : default_value;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** words) {
  using farandole::bench::argument_or;
  return farandole::bench::run(argument_or(2, count, words, 1), argument_or(1, count, words, 2));
}
