// The kernel tables that the files kernels_*.cc define. Each file is compiled with its own flags.
#pragma once

#include "device/cpu/kernels.h"

namespace farandole {

extern const KernelTable kBaselineKernels;  // SSE2 or NEON, which every x86-64 or ARM64 CPU has
extern const KernelTable kAvx2Kernels;      // AVX2, F16C
extern const KernelTable kAvx512Kernels;    // AVX-512 F, BW, DQ and VL

extern const AdasumTable kBaselineAdasum;
extern const AdasumTable kAvx2Adasum;
extern const AdasumTable kAvx512Adasum;

}  // namespace farandole
