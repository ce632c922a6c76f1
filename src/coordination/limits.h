// Limits of what the agreement sends and remembers. They bound memory, and no result depends on
// them. tests/sim has a build with small ones, so only .cc files may include this.
#pragma once

#include <cstddef>

namespace farandole {

inline constexpr std::size_t kListMax = 1024;  // of an item of a message, so also of a bucket
inline constexpr std::size_t kHistoryBytesMax = std::size_t{1} << 20;  // since the last sync point
inline constexpr std::size_t kDigestsMax = 4096;    // of supersteps, and of waits, seen before
inline constexpr std::size_t kSuccessorsMax = 256;  // the fragments that may follow one fragment

}  // namespace farandole
