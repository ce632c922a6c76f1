// Replaces src/control/limits.h in sim_with_small_limits. The limits are just large enough for
// a loop script: at most 16 names per group, and three variants of two stages.
#pragma once

#include <cstddef>

namespace farandole {

inline constexpr std::size_t kListLengthMax = 3;
inline constexpr std::size_t kHistoryBytesMax = 1024;
inline constexpr std::size_t kDigestsMax = 16;
inline constexpr std::size_t kSuccessorsMax = 8;

}  // namespace farandole
