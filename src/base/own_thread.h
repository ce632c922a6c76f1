// Each of our threads calls begin_own_thread() first. Our threads run inside the user's program and
// must not disturb it.
#pragma once

namespace farandole {

// Names the calling thread (at most 15 characters) and blocks signals in it, so that the user's
// threads receive them: a handler that runs in our thread would not interrupt a system call in
// which the program waits. Signals that the thread itself causes (such as SIGSEGV) still arrive, so
// that Python's faulthandler can report them.
void begin_own_thread(const char* name);

}  // namespace farandole
