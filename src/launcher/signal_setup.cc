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
  sigset_t blocked_signals = handled;
  sigaddset(&blocked_signals, SIGPIPE);
  sigaddset(&blocked_signals, SIGTTOU);
  sigaddset(&blocked_signals, SIGXFSZ);
  ::sigprocmask(SIG_BLOCK, &blocked_signals, nullptr);
}

void stop_after_ctrl_z() {
  sigset_t stop_signal;
  sigset_t original_mask;
  sigemptyset(&stop_signal);
  sigaddset(&stop_signal, SIGTSTP);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop_signal, &original_mask);  // the process is stopped here
  ::sigprocmask(SIG_SETMASK, &original_mask, nullptr);
  ::kill(::getpid(), SIGCONT);
}

OriginalProcessState save_and_adjust_state() {
  OriginalProcessState state{};
  ::signal(SIGCHLD, SIG_DFL);  // if SIGCHLD is ignored, the kernel does not report ended children
  ::sigprocmask(SIG_SETMASK, nullptr, &state.signal_mask);
  ::getrlimit(RLIMIT_NOFILE, &state.descriptor_limit);
  rlimit raised_limit = state.descriptor_limit;
  raised_limit.rlim_cur = raised_limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &raised_limit);
  return state;
}

}  // namespace farandole
