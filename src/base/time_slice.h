// Time slices: how long the kernel lets a thread compute before it runs others of the same
// priority.
#pragma once

#include <cstdint>

namespace farandole {

// the shortest slice that the kernel grants
inline constexpr std::uint64_t kShortestTimeSliceNs = 100'000;

// Asks for the shortest time slices for the calling thread, permanently. The thread gets no more
// processor time, but it gets it sooner: if it wakes on a core where another thread computes, it
// does not wait for the end of that thread's slice, which may take 3 ms or more. Call it in threads
// that sleep until another rank wakes them. Does nothing before Linux 6.12, or if the thread has
// another scheduling policy. Costs one system call (two for the first time).
void take_short_time_slices();

// The calling thread's slice in nanoseconds; 0 if the kernel has no slices per thread.
std::uint64_t time_slice_ns();

}  // namespace farandole
