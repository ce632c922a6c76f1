// Differences between processors and compilers. No other file has #if, except kernels and device
// code.
#pragma once

// Annotations for clang's thread-safety analysis. Other compilers have no such analysis.
#if defined(__clang__)
#define FARANDOLE_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define FARANDOLE_THREAD_SAFETY(...)
#endif

namespace farandole {

// A hint to the processor that the caller is in a spin loop.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Orders earlier loads of plain memory before later atomic loads, so that the plain loads cannot
// see newer data than the atomic loads. (No std::atomic_thread_fence: the thread sanitizer does not
// support it.)
inline void finish_loads() {
#if defined(__aarch64__)
  asm volatile("dmb ishld" ::: "memory");
#else
  asm volatile("" ::: "memory");  // x86-64 does not reorder loads
#endif
}

}  // namespace farandole
