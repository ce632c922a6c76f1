// CHECK(condition, "why this must hold"): a broken invariant is a bug and stops the process, even
// in release builds. Expected failures are Status values instead.
#pragma once

namespace farandole {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* why) noexcept;

}  // namespace farandole

#define CHECK(condition, why)                                         \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::farandole::check_failed(__FILE__, __LINE__, #condition, why); \
  } while (false)
