// Limits for the messages and the memory of the agreement. No result depends on them. Some tests
// build this room with smaller limits, so only .cc files may include this header.
#pragma once

#include <cstddef>

namespace farandole {

inline constexpr std::size_t kListLengthMax =
    1024;  // numbers in a list of a message; calls in a bucket
inline constexpr std::size_t kHistoryBytesMax = std::size_t{1} << 20;  // Learner::history_bytes()
// The largest number of remembered supersteps. Also the largest number of remembered waits.
inline constexpr std::size_t kDigestsMax = 4096;
inline constexpr std::size_t kSuccessorsMax = 256;  // fragments that may follow one fragment

}  // namespace farandole
