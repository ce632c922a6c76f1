#include "device/cpu/adasum_kernels.h"
#include "device/cpu/instruction_sets.h"
#include "device/cpu/vector_kernels.h"

namespace farandole {

constinit const KernelTable kAvx2Kernels = kVectorKernels;
constinit const AdasumTable kAvx2Adasum = kAdasumKernels;

}  // namespace farandole
