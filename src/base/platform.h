// What differs between processors. The only place for #if outside of kernels and device code.
#pragma once

namespace farandole {

// Tells the processor that this is a spin loop.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace farandole
