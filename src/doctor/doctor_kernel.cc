#include "doctor/doctor_kernel.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/system_files.h"

namespace farandole {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr const char* kKernelAdvice =
    "Linux 5.3 or newer is needed; in a container, its seccomp profile must allow the call";

// Returns the finding for a system call that has failed with errno.
Finding finding_on_failed_call(const char* call) {
  const char* advice = kKernelAdvice;
  if (errno == EMFILE || errno == ENFILE) advice = "look at `ulimit -n`";
  if (errno == ENOMEM) advice = "look at `ulimit -v` and at the memory that is free";
  if (errno == EAGAIN) advice = "look at `ulimit -u`";
  return {Health::kDoesNotWork, format_text("{}: {}", call, std::strerror(errno)), advice};
}

Finding check_kernel() {
  utsname name{};
  if (::uname(&name) != 0) return finding_on_failed_call("uname");
  return {Health::kWorks, format_text("{} {} on {}", name.sysname, name.release, name.machine), ""};
}

// Starts a child that runs `role` and ends with its result as the exit code.
template <class Role>
pid_t start_child(Role role) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(role());
}

Finding check_process_handles() {
  const pid_t child = start_child([] { return ::pause(); });
  if (child < 0) return finding_on_failed_call("fork");
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  const int failure = errno;
  ::kill(child, SIGKILL);
  pollfd entry{process.get(), POLLIN, 0};
  const bool end_was_reported = process.valid() && ::poll(&entry, 1, -1) == 1;
  ::waitpid(child, nullptr, 0);
  errno = failure;
  if (!process.valid()) return finding_on_failed_call("pidfd_open");
  if (!end_was_reported)
    return {Health::kDoesNotWork, "pidfd_open: the end of a process is not reported",
            kKernelAdvice};
  return {Health::kWorks, "pidfd_open: the end of a process is reported at once", ""};
}

Finding check_process_tree() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
    return finding_on_failed_call("PR_SET_CHILD_SUBREAPER");
  const pid_t child = start_child([] { return ::fork() < 0 ? 1 : 0; });
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
    return finding_on_failed_call("fork");
  if (::waitpid(-1, nullptr, 0) < 0)
    return {Health::kDoesNotWork,
            "PR_SET_CHILD_SUBREAPER: orphans do not become children of the launcher",
            kKernelAdvice};
  return {Health::kWorks, "PR_SET_CHILD_SUBREAPER: orphans become children of the launcher", ""};
}

Finding check_events() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  const Descriptor signals(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!signals.valid()) return finding_on_failed_call("signalfd");
  const Descriptor poller(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest{};
  interest.events = EPOLLIN;
  if (!poller.valid() || ::epoll_ctl(poller.get(), EPOLL_CTL_ADD, signals.get(), &interest) != 0)
    return finding_on_failed_call("epoll");
  ::raise(SIGUSR1);
  if (::epoll_wait(poller.get(), &interest, 1, -1) != 1)
    return finding_on_failed_call("epoll_wait");
  return {Health::kWorks, "signalfd and epoll: a signal arrives", ""};
}

// Creates memory in the same way as the engine creates the memory that workers share.
Descriptor sealed_memory() {
  Descriptor memory(::memfd_create("farandole-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid() || ::ftruncate(memory.get(), kPageBytes) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return {};
  return memory;
}

void* map_page(const Descriptor& memory) {
  return ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
}

Finding check_shared_memory() {
  const Descriptor memory = sealed_memory();
  if (!memory.valid()) return finding_on_failed_call("memfd_create with seals");
  if (map_page(memory) == MAP_FAILED) return finding_on_failed_call("mmap");
  if (::ftruncate(memory.get(), 0) == 0)
    return {Health::kDoesNotWork, "memfd_create: sealed memory can still shrink", kKernelAdvice};
  return {Health::kWorks, "memfd_create: sealed memory cannot shrink", ""};
}

using Word = std::atomic<std::uint32_t>;

// Waits until the word is `value`. Returns false if it is not woken within 2 s.
bool wait_until(Word& word, std::uint32_t value) {
  const timespec limit{2, 0};
  while (word.load() != value) {
    const auto current = word.load();
    if (current != value &&
        ::syscall(SYS_futex, &word, FUTEX_WAIT, current, &limit, nullptr, 0) != 0 &&
        errno != EAGAIN && errno != EINTR)
      return false;
  }
  return true;
}

void set_and_wake(Word& word, std::uint32_t value) {
  word.store(value);
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Finding check_wake_ups() {
  const Descriptor memory = sealed_memory();
  void* mapped = memory.valid() ? map_page(memory) : MAP_FAILED;
  if (mapped == MAP_FAILED) return finding_on_failed_call("memfd_create and mmap");
  auto* request = new (mapped) Word(0);
  auto* reply = new (static_cast<std::byte*>(mapped) + sizeof(Word)) Word(0);
  const pid_t child = start_child([&] {
    if (!wait_until(*request, 1)) return 1;
    set_and_wake(*reply, 1);
    return 0;
  });
  if (child < 0) return finding_on_failed_call("fork");
  set_and_wake(*request, 1);
  if (!wait_until(*reply, 1)) return finding_on_failed_call("futex between two processes");
  ::waitpid(child, nullptr, 0);
  return {Health::kWorks, "futex: two processes wake each other", ""};
}

// Sends a message with one descriptor. The kernel adds our credentials.
int send_descriptor(int socket, int descriptor) {
  char byte = 1;
  iovec content{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  return ::sendmsg(socket, &message, 0) == 1 ? 0 : 1;
}

struct Received {
  ucred sender{};
  Descriptor descriptor;
};

Received receive_descriptor(int socket) {
  char byte = 0;
  iovec content{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  Received received;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return received;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_type == SCM_CREDENTIALS)
      std::memcpy(&received.sender, CMSG_DATA(part), sizeof(ucred));
    if (part->cmsg_type != SCM_RIGHTS) continue;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(part), sizeof(int));
    received.descriptor = Descriptor(number);
  }
  return received;
}

Finding check_descriptor_passing() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return finding_on_failed_call("socketpair");
  const Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  const int enabled = 1;
  if (::setsockopt(ours.get(), SOL_SOCKET, SO_PASSCRED, &enabled, sizeof(enabled)) != 0)
    return finding_on_failed_call("SO_PASSCRED");
  const Descriptor memory = sealed_memory();
  const pid_t child = start_child([&] { return send_descriptor(theirs.get(), memory.get()); });
  if (child < 0) return finding_on_failed_call("fork");
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) return finding_on_failed_call("sendmsg with SCM_RIGHTS");
  const Received received = receive_descriptor(ours.get());
  if (!received.descriptor.valid()) return finding_on_failed_call("recvmsg with SCM_RIGHTS");
  if (received.sender.pid != child || received.sender.uid != ::getuid())
    return {Health::kDoesNotWork,
            "SCM_CREDENTIALS: the kernel does not say which process sent a message", kKernelAdvice};
  return {Health::kWorks,
          "SCM_RIGHTS and SCM_CREDENTIALS: a descriptor arrives, with the sender's pid and uid",
          ""};
}

Finding check_worker_terminals() {
  const Descriptor terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 64> name{};
  if (terminal.valid() && ::grantpt(terminal.get()) == 0 && ::unlockpt(terminal.get()) == 0 &&
      ::ptsname_r(terminal.get(), name.data(), name.size()) == 0 &&
      Descriptor(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC)).valid())
    return {Health::kWorks, "posix_openpt: workers can have a terminal", ""};
  return {
      Health::kLimited, format_text("posix_openpt: {}", std::strerror(errno)),
      "mount /dev/pts, or start jobs with their output in a pipe: `farandole run … 2>&1 | cat`"};
}

std::string why_not_readable() {
  const auto scope = number_in_file("/proc/sys/kernel/yama/ptrace_scope");
  if (scope && *scope > 0)
    return format_text("/proc/sys/kernel/yama/ptrace_scope is {}; 0 would allow it", *scope);
  return "in a container, its seccomp profile must allow process_vm_readv, or it needs "
         "--cap-add=SYS_PTRACE";
}

Finding check_memory_of_others() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return finding_on_failed_call("pipe2");
  const Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  volatile int value = 1;
  const pid_t child = start_child([&] {
    value = 2;
    return ::write(theirs.get(), "!", 1) == 1 ? ::pause() : 1;
  });
  if (child < 0) return finding_on_failed_call("fork");
  char byte = 0;
  const bool child_has_written = ::read(ours.get(), &byte, 1) == 1;
  int copy = 0;
  const iovec to{&copy, sizeof(copy)};
  const iovec from{const_cast<int*>(&value), sizeof(copy)};
  const bool was_copied =
      child_has_written && ::process_vm_readv(child, &to, 1, &from, 1, 0) == sizeof(copy);
  const std::string why = was_copied ? "" : std::strerror(errno);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (was_copied && copy == 2)
    return {Health::kWorks, "process_vm_readv: a child's memory can be read; not used yet", ""};
  return {Health::kDoesNotWork, "process_vm_readv: " + why + "; not used yet", why_not_readable()};
}

}  // namespace

std::vector<Check> kernel_checks() {
  return {single_check("kernel", true, check_kernel),
          single_check("process handles", true, check_process_handles),
          single_check("process tree", true, check_process_tree),
          single_check("events", true, check_events),
          single_check("shared memory", true, check_shared_memory),
          single_check("wake-ups", true, check_wake_ups),
          single_check("descriptor passing", true, check_descriptor_passing),
          single_check("worker terminals", false, check_worker_terminals),
          single_check("memory of others", false, check_memory_of_others)};
}

}  // namespace farandole
