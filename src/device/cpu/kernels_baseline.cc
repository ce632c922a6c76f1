#include "device/cpu/adasum_kernels.h"
#include "device/cpu/instruction_sets.h"
#include "device/cpu/vector_kernels.h"

namespace farandole {

constinit const KernelTable kBaselineKernels = kVectorKernels;
constinit const AdasumTable kBaselineAdasum = kAdasumKernels;

}  // namespace farandole
