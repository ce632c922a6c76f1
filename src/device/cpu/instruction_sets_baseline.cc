#include "device/cpu/instruction_sets.h"

namespace farandole {

std::span<const InstructionSet> instruction_sets() {
  static constexpr InstructionSet kBaseline = {
      .name = "baseline", .kernels = &kBaselineKernels, .adasum = &kBaselineAdasum};
  return {&kBaseline, 1};
}

}  // namespace farandole
