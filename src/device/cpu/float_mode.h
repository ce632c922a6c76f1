// StandardFloatMode: as long as it lives, its thread computes as IEEE 754 says. Otherwise, results
// would depend on the thread that computes them: TensorFlow, XLA and torch.set_flush_denormal() let
// some threads replace numbers below 1.2e-38 (the smallest normal float32) by zero.
#pragma once

#include <cstdint>

namespace farandole {

// The part of a thread's floating-point control register that changes results.
#if defined(__x86_64__)
using FloatMode = std::uint32_t;
inline constexpr FloatMode kFlagBits = 0x3F;  // what has happened, such as an overflow
inline constexpr FloatMode kStandardMode = 0x1F80;
inline constexpr FloatMode kFlushingMode = kStandardMode | 0x8040;  // of inputs and of results
inline FloatMode float_mode() { return __builtin_ia32_stmxcsr() & ~kFlagBits; }
inline void set_float_mode(FloatMode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
using FloatMode = std::uint64_t;
inline constexpr FloatMode kStandardMode = 0;
inline constexpr FloatMode kFlushingMode = FloatMode{1} << 24;
inline FloatMode float_mode() {
  FloatMode mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#endif

// The code whose mode it sets must be a function that is not inlined, because the compiler may move
// computations over this object.
class StandardFloatMode {
 public:
  StandardFloatMode() : before_(float_mode()) {
    if (before_ != kStandardMode) set_float_mode(kStandardMode);
  }
  ~StandardFloatMode() {
    if (before_ != kStandardMode) set_float_mode(before_);
  }
  StandardFloatMode(const StandardFloatMode&) = delete;
  StandardFloatMode& operator=(const StandardFloatMode&) = delete;

 private:
  FloatMode before_;
};

}  // namespace farandole
