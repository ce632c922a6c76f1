#include "base/own_thread.h"

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace farandole {

void begin_own_thread(const char* name) {
  ::pthread_setname_np(::pthread_self(), name);
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
    sigdelset(&blocked, fault);
  ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

}  // namespace farandole
