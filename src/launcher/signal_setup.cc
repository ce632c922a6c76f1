#include "launcher/signal_setup.h"

#include <sys/resource.h>
#include <unistd.h>

namespace farandole {

bool is_ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT})
    if (!is_ignored(signal)) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  return set;
}

void block_signals(const sigset_t& handled) {
  sigset_t blocked = handled;
  sigaddset(&blocked, SIGPIPE);
  sigaddset(&blocked, SIGTTOU);
  sigaddset(&blocked, SIGXFSZ);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
}

void stop_after_ctrl_z() {
  sigset_t stop;
  sigset_t original;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, &original);  // the process is stopped here
  ::sigprocmask(SIG_SETMASK, &original, nullptr);
  ::kill(::getpid(), SIGCONT);
}

OriginalProcessState save_and_adjust_state() {
  OriginalProcessState state{};
  ::signal(SIGCHLD, SIG_DFL);  // if SIGCHLD is ignored, the kernel does not report ended children
  ::sigprocmask(SIG_SETMASK, nullptr, &state.signal_mask);
  ::getrlimit(RLIMIT_NOFILE, &state.descriptor_limit);
  rlimit raised = state.descriptor_limit;
  raised.rlim_cur = raised.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return state;
}

}  // namespace farandole
