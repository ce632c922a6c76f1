#include "device/cpu/instruction_sets.h"

namespace farandole {
namespace {

// The instruction sets, the fastest first. A processor that has one of them also has all later
// ones.
constexpr std::array<InstructionSet, 3> kSets = {
    {{.name = "avx512", .kernels = &kAvx512Kernels, .adasum = &kAvx512Adasum},
     {.name = "avx2", .kernels = &kAvx2Kernels, .adasum = &kAvx2Adasum},
     {.name = "baseline", .kernels = &kBaselineKernels, .adasum = &kBaselineAdasum}}};

// __builtin_cpu_supports() also checks that the operating system saves the registers of the
// instruction set.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

std::span<const InstructionSet> instruction_sets() {
  static const std::size_t first = has_avx512() ? 0 : has_avx2() ? 1 : 2;
  return std::span(kSets).subspan(first);
}

}  // namespace farandole
