// Shortage of memory and other resources. In a job of two processes, the n-th allocation or system
// call of one rank fails. n grows from run to run until the rank makes fewer calls. Each run must
// end in one of three ways: the job succeeds; both ranks get an error; or the process aborts and
// reports that it has no memory left. A failed CHECK or a hang fails the test.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/try.h"
#include "farandole/engine.h"
#include "rendezvous/store_server.h"

namespace farandole {
namespace {

// Which call of a function fails, and with which error. All threads of a process share one
// Injection.
struct Injection {
  std::atomic<const char*> function_name = nullptr;  // the function; null: no call fails
  std::atomic<int> calls_left = 0;                   // if this is 1, the next call fails
  std::atomic<int> error = 0;
  std::atomic<bool> has_fired = false;
};
Injection injection;

// Counts a call of this function. Returns true if this call must fail, with errno set.
bool inject_failure(const char* function_name) {
  const char* const failing_function = injection.function_name.load();
  if (failing_function == nullptr || std::string_view(failing_function) != function_name)
    return false;
  if (injection.calls_left.fetch_sub(1) != 1) return false;
  injection.has_fired = true;
  errno = injection.error;
  return true;
}

template <class Function>
Function* real_function(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace farandole

// The linker prefers these definitions to the definitions in the C library.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (farandole::inject_failure("new")) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" {
int memfd_create(const char* name, unsigned int flags) noexcept {
  if (farandole::inject_failure("memfd_create")) return -1;
  return farandole::real_function(&::memfd_create, "memfd_create")(name, flags);
}
int ftruncate(int descriptor, off_t bytes) noexcept {
  if (farandole::inject_failure("ftruncate")) return -1;
  return farandole::real_function(&::ftruncate, "ftruncate")(descriptor, bytes);
}
void* mmap(void* address, std::size_t bytes, int rights, int flags, int descriptor,
           off_t offset) noexcept {
  if (farandole::inject_failure("mmap")) return MAP_FAILED;
  return farandole::real_function(&::mmap, "mmap")(address, bytes, rights, flags, descriptor,
                                                   offset);
}
int eventfd(unsigned int count, int flags) noexcept {
  if (farandole::inject_failure("eventfd")) return -1;
  return farandole::real_function(&::eventfd, "eventfd")(count, flags);
}
ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (farandole::inject_failure("sendmsg")) return -1;
  return farandole::real_function(&::sendmsg, "sendmsg")(socket, message, flags);
}
ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (farandole::inject_failure("recvmsg")) return -1;
  return farandole::real_function(&::recvmsg, "recvmsg")(socket, message, flags);
}
int poll(pollfd* entries, nfds_t count, int limit_ms) {
  if (farandole::inject_failure("poll")) return -1;
  return farandole::real_function(&::poll, "poll")(entries, count, limit_ms);
}
int epoll_wait(int epoll, struct epoll_event* events, int count, int limit_ms) {
  if (farandole::inject_failure("epoll_wait")) return -1;
  return static_cast<int>(::syscall(SYS_epoll_wait, epoll, events, count, limit_ms));
}
ssize_t write(int descriptor, const void* bytes, std::size_t count) {
  if (farandole::inject_failure("write")) return -1;
  return ::syscall(SYS_write, descriptor, bytes, count);
}
int fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  if (farandole::inject_failure("fcntl")) return -1;
  return static_cast<int>(::syscall(SYS_fcntl, descriptor, command, argument));
}
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)

namespace farandole {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTestTimeout(60'000);

// How a rank ended, by its exit status.
enum Ending : int { kSuccess = 40, kError, kWrongResult, kHangs };

// What a rank reports to the parent process: its last status, and whether it has joined the job.
struct RankReport {
  std::array<char, 2048> text{};
  std::atomic<bool> has_fired = false;
  std::atomic<bool> has_joined = false;
};

void record_status(RankReport& report, const Status& status) {
  const auto bytes = std::min(status.message().size(), report.text.size() - 1);
  std::copy_n(status.message().begin(), bytes, report.text.begin());
}

struct Job {
  std::array<RankReport, 2> reports;
  int error_file = -1;  // a file that gets the standard error of the rank with the failure
};

std::string text_in(int file) {
  std::string text(4096, '\0');
  const ssize_t bytes = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

// Returns false if the call hangs.
bool run_call(Engine& engine, const Submission& submission, Outcome& outcome) {
  const auto handle = engine.submit(submission);
  if (!handle.ok()) {
    outcome.status = handle.status();
    return true;
  }
  if (!engine.wait(*handle, kTestTimeout)) return false;
  outcome = engine.take(*handle);
  return true;
}

Submission call_of(Operation operation, std::vector<float>& values) {
  Submission submission;
  submission.operation = operation;
  // long, so that its copy needs memory
  submission.name = "the gradients of this model's embedding";
  submission.dtype = DType::kFloat32;
  submission.shape = {static_cast<std::int64_t>(values.size())};
  submission.input = values.data();
  submission.output = values.data();
  return submission;
}

// Reduces two separate tensors in one step.
Status reduce_together(Engine& engine) {
  std::vector<float> first(1000, 1.0F);
  std::vector<float> second(1000, 2.0F);
  std::vector<Submission> batch = {call_of(Operation::kAllreduce, first),
                                   call_of(Operation::kAllreduce, second)};
  batch[1].name += ", turned";
  const auto handles = engine.submit_batch(batch, kTestTimeout);
  FARANDOLE_TRY(handles.status());
  for (const Handle handle : *handles) FARANDOLE_TRY(engine.take(handle).status);
  return first.back() == 2.0F && second.back() == 4.0F ? Status() : Status::stop("a wrong sum");
}

// Joins the job, runs collectives, adds and removes a group, and leaves.
Ending run_rank(int rank, int descriptor, RankReport& report) {
  EngineOptions options;
  options.heap_bytes = 64 << 20;
  options.bucket_bytes = 1 << 20;
  options.topology = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2};
  options.rendezvous_descriptor = descriptor;
  options.start_timeout = kTestTimeout;
  auto engine = Engine::create(options);
  const auto has_failed = [&](const Status& status) {
    record_status(report, status);
    return !status.ok();
  };
  if (has_failed(engine.status())) return kError;
  report.has_joined = true;
  std::vector<float> values(100'000, 1.0F);
  Outcome allreduce_outcome;
  if (!run_call(**engine, call_of(Operation::kAllreduce, values), allreduce_outcome)) return kHangs;
  if (has_failed(allreduce_outcome.status)) return kError;
  if (std::accumulate(values.begin(), values.end(), 0.0) != 200'000.0) return kWrongResult;
  Outcome allgather_outcome;
  if (!run_call(**engine, call_of(Operation::kAllgather, values), allgather_outcome)) return kHangs;
  if (has_failed(allgather_outcome.status)) return kError;
  if (allgather_outcome.received_rows != std::vector<std::int64_t>{100'000, 100'000})
    return kWrongResult;
  if (has_failed(reduce_together(**engine))) return kError;
  const auto group = (*engine)->add_group({1});
  if (has_failed(group.status())) return kError;
  if (has_failed((*engine)->remove_group(*group))) return kError;
  Outcome barrier_outcome;
  if (!run_call(**engine, Submission{}, barrier_outcome)) return kHangs;
  if (has_failed(barrier_outcome.status)) return kError;
  (void)(*engine)->shutdown("done");
  return kSuccess;
}

struct Failure {
  const char* function_name;
  int failing_call;
  int error;
};

// Runs two ranks as processes and serves their Store. One call of rank `failing_rank` fails. If one
// rank has ended with an error and the other rank still waits in create(), the other rank is killed
// after 100 ms, as the launcher does. After create(), the other rank must notice the end itself.
std::array<int, 2> run_with_failure(const Failure& failure, int failing_rank, Job& job) {
  auto server = StoreServer::create("the launcher");
  EXPECT_TRUE(server.ok());
  std::array<pid_t, 2> children{};
  std::vector<Descriptor> client_sockets;
  for (int rank = 0; rank < 2; ++rank)
    client_sockets.push_back(*(*server)->add_client("rank " + std::to_string(rank)));
  for (int rank = 0; rank < 2; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    children[index] = ::fork();
    if (children[index] != 0) continue;
    ::alarm(90);  // kills a rank that hangs
    if (rank == failing_rank) {
      ::dup2(job.error_file, STDERR_FILENO);
      injection.error = failure.error;
      injection.calls_left = failure.failing_call;
      injection.function_name = failure.function_name;
    }
    Ending ending = kError;
    try {
      ending = run_rank(rank, client_sockets[index].get(), job.reports[index]);
    } catch (const std::bad_alloc&) {
      record_status(job.reports[index], Status::stop("std::bad_alloc"));
    }
    injection.function_name = nullptr;
    job.reports[index].has_fired = injection.has_fired.load();
    ::_exit(ending);
  }
  client_sockets.clear();
  std::array<int, 2> statuses{};
  TimePoint deadline = TimePoint::max();
  for (int running_children = 2; running_children > 0;) {
    pollfd polled{(*server)->ready_descriptor(), POLLIN, 0};
    ::poll(&polled, 1, 5);
    (void)(*server)->serve_ready();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      if (children[rank] == 0 || ::waitpid(children[rank], &statuses[rank], WNOHANG) == 0) continue;
      children[rank] = 0;
      --running_children;
      if (!WIFEXITED(statuses[rank]) || WEXITSTATUS(statuses[rank]) != kSuccess)
        deadline = std::chrono::steady_clock::now() + milliseconds(100);
    }
    if (std::chrono::steady_clock::now() < deadline) continue;
    for (std::size_t rank = 0; rank < 2; ++rank)
      if (children[rank] != 0 && !job.reports[rank].has_joined) ::kill(children[rank], SIGTERM);
    deadline = TimePoint::max();
  }
  return statuses;
}

class ShortageTest : public ::testing::Test {
 protected:
  ShortageTest()
      : job_(*new(::mmap(nullptr, sizeof(Job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Job) {}
  ~ShortageTest() override { ::munmap(&job_, sizeof(Job)); }

  // Repeats the job. In each run, the n-th call of the function fails. n begins with a random
  // number up to `step` and grows by `step`, until a rank makes fewer than n calls. The number of
  // calls may vary from run to run.
  void fail_each_call(const char* function_name, int error, int step = 1) {
    const int failures_before = failures_;
    for (int failing_rank = 0; failing_rank < 2; ++failing_rank) {
      for (int failing_call =
               1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(step));
           ; failing_call += step) {
        new (&job_) Job;
        const Descriptor error_file(::memfd_create("errors", MFD_CLOEXEC));
        job_.error_file = error_file.get();
        const auto statuses =
            run_with_failure({function_name, failing_call, error}, failing_rank, job_);
        const auto failing_index = static_cast<std::size_t>(failing_rank);
        const bool failure_was_reached =
            job_.reports[failing_index].has_fired || !WIFEXITED(statuses[failing_index]);
        SCOPED_TRACE(format_text("{} number {} of rank {}; it says: {}; the other: {}",
                                 function_name, failing_call, failing_rank,
                                 job_.reports[failing_index].text.data(),
                                 job_.reports[1 - failing_index].text.data()));
        check_endings(statuses, failing_index);
        if (HasFailure()) return;
        if (!failure_was_reached) break;
        ++failures_;
      }
    }
    EXPECT_GT(failures_, failures_before) << "no rank ever called " << function_name;
  }

  void check_endings(const std::array<int, 2>& statuses, std::size_t failing_rank) {
    const int failing_status = statuses[failing_rank];
    const int other_status = statuses[1 - failing_rank];
    if (WIFSIGNALED(failing_status)) {
      // The rank has aborted because of a lack of memory, and must have reported this on standard
      // error.
      EXPECT_EQ(WTERMSIG(failing_status), SIGABRT);
      EXPECT_THAT(text_in(job_.error_file),
                  ::testing::HasSubstr("has no memory left (malloc failed)"));
      ++endings_["abort"];
    } else {
      ASSERT_THAT(WEXITSTATUS(failing_status), ::testing::AnyOf(kSuccess, kError));
      ++endings_[WEXITSTATUS(failing_status) == kSuccess ? "success" : "error"];
      if (WEXITSTATUS(failing_status) == kError) {
        EXPECT_STRNE(job_.reports[failing_rank].text.data(), "");
      }
    }
    if (WIFSIGNALED(other_status)) {
      EXPECT_EQ(WTERMSIG(other_status), SIGTERM);
      EXPECT_FALSE(job_.reports[1 - failing_rank].has_joined);
      ++endings_["other ended by the launcher"];
    } else {
      ASSERT_THAT(WEXITSTATUS(other_status), ::testing::AnyOf(kSuccess, kError));
    }
  }

  void print_endings() const {
    std::printf("%d failures:", failures_);
    for (const auto& [ending, count] : endings_) std::printf(" %d %s;", count, ending.c_str());
    std::printf("\n");
  }

  Job& job_;
  int failures_ = 0;
  std::map<std::string, int> endings_;
};

TEST_F(ShortageTest, AFailedAllocationEndsTheJobCleanly) {
  fail_each_call("new", ENOMEM, 5);  // a rank makes about 800 allocations
  print_endings();
  EXPECT_GT(endings_["error"], 20);
  EXPECT_GT(endings_["abort"], 3);
}

TEST_F(ShortageTest, AFailedSystemCallEndsTheJobCleanly) {
  fail_each_call("memfd_create", EMFILE);
  fail_each_call("ftruncate", ENOMEM);
  fail_each_call("mmap", ENOMEM);
  fail_each_call("eventfd", EMFILE);
  fail_each_call("fcntl", EMFILE);
  print_endings();
  EXPECT_EQ(endings_["abort"], 0);
  EXPECT_GT(endings_["error"], 20);
}

TEST_F(ShortageTest, InterruptionsChangeNothing) {
  for (const char* const function_name :
       {"sendmsg", "recvmsg", "poll", "write", "epoll_wait", "ftruncate"})
    fail_each_call(function_name, EINTR);
  for (const char* const function_name : {"sendmsg", "recvmsg"})
    fail_each_call(function_name, EAGAIN);
  fail_each_call("sendmsg", ENOBUFS);
  print_endings();
  EXPECT_GT(failures_, 50);
  EXPECT_EQ(endings_["error"] + endings_["abort"], 0);
}

}  // namespace
}  // namespace farandole
