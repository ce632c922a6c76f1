// LD_PRELOAD shim: lets the n-th system call of one process of a job fail or do less than
// requested. It counts only calls that come from Farandole's own code, in the launcher or in one
// worker:
//   FAULT_TARGET   launcher, or the number of a rank
//   FAULT_KIND     EINTR, EAGAIN, ENOBUFS, SHORT, or LIMIT (a system limit is reached)
//   FAULT_NUMBER   n, counted over the calls that can fail this way; 0: none fails, all are counted
//   FAULT_COUNTERS a file of 16 bytes: the number of such calls, and the number of faults
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct counters {
  _Atomic long calls;
  _Atomic long faults;
};

static struct counters* counters;
static const char* chosen_kind;
static long faulty_call;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void read_settings(void) {
  const char* target = getenv("FAULT_TARGET");
  const char* file = getenv("FAULT_COUNTERS");
  const char* rank = getenv("FARANDOLE_RANK");
  if (target == NULL || file == NULL || strcmp(target, rank == NULL ? "launcher" : rank) != 0)
    return;
  const int descriptor = REAL(open)(file, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) abort();
  void* memory =
      REAL(mmap)(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) abort();
  chosen_kind = getenv("FAULT_KIND");
  faulty_call = atol(getenv("FAULT_NUMBER"));
  counters = memory;
}

static int is_in_farandole(void* caller) {
  Dl_info info;
  if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return 0;
  const char* slash = strrchr(info.dli_fname, '/');
  const char* name = slash == NULL ? info.dli_fname : slash + 1;
  return strncmp(name, "farandole", 9) == 0 || strncmp(name, "core.", 5) == 0;
}

// Counts this call. If it is the one to fail, sets errno to `error` and returns 1.
static int inject_fault(const char* fault_kind, int error, void* caller) {
  if (counters == NULL || strcmp(chosen_kind, fault_kind) != 0 || !is_in_farandole(caller))
    return 0;
  if (atomic_fetch_add(&counters->calls, 1) + 1 != faulty_call) return 0;
  atomic_fetch_add(&counters->faults, 1);
  errno = error;
  return 1;
}

static int is_stream(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

static int never_blocks(int descriptor) {
  return (REAL(fcntl)(descriptor, F_GETFL) & O_NONBLOCK) != 0;
}

#define CALLER __builtin_return_address(0)
#define INTERRUPTED inject_fault("EINTR", EINTR, CALLER)
#define LIMITED(error) inject_fault("LIMIT", error, CALLER)

ssize_t read(int descriptor, void* bytes, size_t count) {
  if (INTERRUPTED) return -1;
  if (counters != NULL && never_blocks(descriptor) && inject_fault("EAGAIN", EAGAIN, CALLER))
    return -1;
  if (counters != NULL && count > 1 && is_stream(descriptor) && inject_fault("SHORT", 0, CALLER))
    count = 1;
  return REAL(read)(descriptor, bytes, count);
}

ssize_t write(int descriptor, const void* bytes, size_t count) {
  if (INTERRUPTED) return -1;
  if (counters != NULL && count > 1 && is_stream(descriptor) && inject_fault("SHORT", 0, CALLER))
    count = 1;
  return REAL(write)(descriptor, bytes, count);
}

ssize_t sendmsg(int descriptor, const struct msghdr* message, int flags) {
  if (INTERRUPTED || inject_fault("EAGAIN", EAGAIN, CALLER) ||
      inject_fault("ENOBUFS", ENOBUFS, CALLER))
    return -1;
  return REAL(sendmsg)(descriptor, message, flags);
}

ssize_t recvmsg(int descriptor, struct msghdr* message, int flags) {
  if (INTERRUPTED || inject_fault("EAGAIN", EAGAIN, CALLER)) return -1;
  return REAL(recvmsg)(descriptor, message, flags);
}

int poll(struct pollfd* entries, nfds_t count, int limit_ms) {
  if (INTERRUPTED) return -1;
  return REAL(poll)(entries, count, limit_ms);
}

int epoll_wait(int epoll, struct epoll_event* events, int count, int limit_ms) {
  if (INTERRUPTED) return -1;
  return REAL(epoll_wait)(epoll, events, count, limit_ms);
}

int sigtimedwait(const sigset_t* set, siginfo_t* info, const struct timespec* limit) {
  if (INTERRUPTED) return -1;
  return REAL(sigtimedwait)(set, info, limit);
}

int ftruncate(int descriptor, off_t bytes) {
  if (INTERRUPTED || LIMITED(ENOMEM)) return -1;
  return REAL(ftruncate)(descriptor, bytes);
}

int memfd_create(const char* name, unsigned int flags) {
  if (LIMITED(EMFILE)) return -1;
  return REAL(memfd_create)(name, flags);
}

void* mmap(void* at, size_t bytes, int rights, int flags, int descriptor, off_t offset) {
  if (LIMITED(ENOMEM)) return MAP_FAILED;
  return REAL(mmap)(at, bytes, rights, flags, descriptor, offset);
}

int pipe2(int ends[2], int flags) {
  if (LIMITED(EMFILE)) return -1;
  return REAL(pipe2)(ends, flags);
}

int socketpair(int domain, int type, int protocol, int ends[2]) {
  if (LIMITED(EMFILE)) return -1;
  return REAL(socketpair)(domain, type, protocol, ends);
}

int epoll_create1(int flags) {
  if (LIMITED(EMFILE)) return -1;
  return REAL(epoll_create1)(flags);
}

int epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event* event) {
  if (operation == EPOLL_CTL_ADD && LIMITED(ENOSPC)) return -1;
  return REAL(epoll_ctl)(epoll, operation, descriptor, event);
}

int eventfd(unsigned int count, int flags) {
  if (LIMITED(EMFILE)) return -1;
  int (*real)(unsigned int, int) = (int (*)(unsigned int, int))dlsym(RTLD_NEXT, "eventfd");
  return real(count, flags);
}

int signalfd(int descriptor, const sigset_t* mask, int flags) {
  if (LIMITED(EMFILE)) return -1;
  int (*real)(int, const sigset_t*, int) =
      (int (*)(int, const sigset_t*, int))dlsym(RTLD_NEXT, "signalfd");
  return real(descriptor, mask, flags);
}

pid_t fork(void) {
  if (LIMITED(EAGAIN)) return -1;
  return REAL(fork)();
}

int fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  if (command == F_DUPFD_CLOEXEC && LIMITED(EMFILE)) return -1;
  return REAL(fcntl)(descriptor, command, argument);
}

long syscall(long call_number, ...) {
  va_list arguments;
  va_start(arguments, call_number);
  long values[6];
  for (int i = 0; i < 6; ++i) values[i] = va_arg(arguments, long);
  va_end(arguments);
  if (call_number == SYS_pidfd_open && LIMITED(EMFILE)) return -1;
  return REAL(syscall)(call_number, values[0], values[1], values[2], values[3], values[4],
                       values[5]);
}
