// What every thread of ours does first inside a program that is not ours.
#pragma once

namespace farandole {

// Names the calling thread (at most 15 letters), and leaves the program's signals to the program's
// threads: a handler that ran here would not interrupt what the program waits in. What a fault
// raises in the thread itself still arrives, so that a faulthandler can tell of it.
void begin_own_thread(const char* name);

}  // namespace farandole
