// Limits for the messages and the memory of the agreement. No result depends on them. Some tests
// build this room with smaller limits, so only .cc files may include this header.
#pragma once

#include <cstddef>

namespace farandole {

// The largest number of entries in a list of a message. Also the largest number of calls in a
// bucket.
inline constexpr std::size_t kListLengthMax = 1024;
inline constexpr std::size_t kHistoryBytesMax = std::size_t{1} << 20;  // Learner::history_bytes()
// The largest number of remembered supersteps. Also the largest number of remembered waits.
inline constexpr std::size_t kDigestsMax = 4096;
// At most this many fragments may follow one fragment.
inline constexpr std::size_t kSuccessorsMax = 256;

}  // namespace farandole
