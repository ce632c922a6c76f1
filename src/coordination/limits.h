// Limits of what the agreement sends and remembers. They bound memory, and no result depends on
// them. Some tests build this room with smaller limits, so only .cc files may include this header.
#pragma once

#include <cstddef>

namespace farandole {

inline constexpr std::size_t kListMax = 1024;  // of a list in a message, so also of a bucket
inline constexpr std::size_t kHistoryBytesMax = std::size_t{1} << 20;  // Learner::history_bytes()
inline constexpr std::size_t kDigestsMax = 4096;    // of remembered supersteps, and of waits
inline constexpr std::size_t kSuccessorsMax = 256;  // the fragments that may follow one fragment

}  // namespace farandole
