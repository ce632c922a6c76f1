// Time slices: for how long the kernel lets a thread compute before others of its priority.
#pragma once

#include <cstdint>

namespace farandole {

inline constexpr std::uint64_t kShortestTimeSliceNs = 100'000;  // that the kernel grants

// Asks for the shortest slices for the calling thread, for good. It gets no more of the processor,
// but gets it sooner: when it wakes beside a thread that computes, it need not wait for the end of
// that one's slice, 3 ms and more. For a thread that is about to sleep until another rank wakes it.
// Does nothing before Linux 6.12, or where the thread has a policy of its own. One system call, the
// first time two.
void take_short_time_slices();

// What the calling thread has, in nanoseconds; 0 where the kernel has no slices of threads.
std::uint64_t time_slice_ns();

}  // namespace farandole
