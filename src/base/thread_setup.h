// How the calling thread appears to the kernel: its name, its signals, its time slices.
#pragma once

#include <cstdint>

namespace farandole {

// Each of our threads calls this first, because our threads run inside the user's program and must
// not disturb it. Names the calling thread (at most 15 characters) and blocks signals in it, so
// that the user's threads receive them. Otherwise, a handler could run in our thread, and would not
// interrupt a system call in which the program waits. Signals that the thread itself causes (such
// as SIGSEGV) still arrive, so that Python's faulthandler can report them.
void set_up_own_thread(const char* name);

// A time slice is how long the kernel lets a thread compute before it runs others of the same
// priority. This constant is the shortest time slice that the kernel grants.
inline constexpr std::uint64_t kShortestTimeSliceNs = 100'000;

// Asks for the shortest time slices for the calling thread, permanently. The thread gets the same
// share of processor time, but gets it sooner: if it wakes on a core where another thread computes,
// it does not wait for the end of that thread's slice, which may take 3 ms or more. Call it in
// threads that sleep until another rank wakes them. Does nothing before Linux 6.12, or if the
// thread has another scheduling policy. Costs one system call (two for the first time).
void request_short_time_slices();

// The calling thread's slice in nanoseconds; 0 if the kernel has no slices per thread.
std::uint64_t time_slice_ns();

}  // namespace farandole
