// What differs between processors and compilers. The only place for #if outside of kernels and
// device code.
#pragma once

// What clang's thread-safety analysis is told; other compilers have none.
#if defined(__clang__)
#define FARANDOLE_THREAD_SAFETY(...) __attribute__((__VA_ARGS__))
#else
#define FARANDOLE_THREAD_SAFETY(...)
#endif

namespace farandole {

// Tells the processor that this is a spin loop.
inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Loads of plain memory that come before it see nothing that is newer than what atomic loads after
// it see. (No fence of the language: the thread sanitizer knows none.)
inline void finish_loads() {
#if defined(__aarch64__)
  asm volatile("dmb ishld" ::: "memory");
#else
  asm volatile("" ::: "memory");  // x86-64 keeps loads in order
#endif
}

}  // namespace farandole
