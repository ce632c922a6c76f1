// StandardFloatMode: while the object exists, its thread computes as IEEE 754 requires. TensorFlow,
// XLA and torch.set_flush_denormal() make some threads replace numbers below 1.2e-38 (the smallest
// normal float32) by zero. Without this class, results would depend on the thread that computes
// them.
#pragma once

#include <cstdint>

namespace farandole {

// The bits of a thread's floating-point control register that affect results.
#if defined(__x86_64__)
using FloatMode = std::uint32_t;
inline constexpr FloatMode kFlagBits = 0x3F;  // flags of past exceptions, such as an overflow
inline constexpr FloatMode kStandardMode = 0x1F80;
// Inputs and results below the smallest normal number become zero.
inline constexpr FloatMode kFlushingMode = kStandardMode | 0x8040;
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

// Put the computation into a function that is not inlined. Otherwise the compiler may move it
// before or after the lifetime of this object.
class StandardFloatMode {
 public:
  StandardFloatMode() : previous_mode_(float_mode()) {
    if (previous_mode_ != kStandardMode) set_float_mode(kStandardMode);
  }
  ~StandardFloatMode() {
    if (previous_mode_ != kStandardMode) set_float_mode(previous_mode_);
  }
  StandardFloatMode(const StandardFloatMode&) = delete;
  StandardFloatMode& operator=(const StandardFloatMode&) = delete;

 private:
  FloatMode previous_mode_;
};

}  // namespace farandole
