// What each of our threads does first. Our threads run inside the user's program and must not
// disturb it.
#pragma once

namespace farandole {

// Names the calling thread (at most 15 characters) and blocks signals in it, so that they reach the
// user's threads: a handler that ran here would not interrupt a system call in which the program
// waits. Signals that the thread itself causes (such as SIGSEGV) still arrive, so that Python's
// faulthandler can report them.
void begin_own_thread(const char* name);

}  // namespace farandole
