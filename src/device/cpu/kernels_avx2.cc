#include "device/cpu/instruction_sets.h"
#include "device/cpu/vector_kernels.h"

namespace farandole {

constinit const KernelTable kAvx2Kernels = kVectorKernels;

}  // namespace farandole
