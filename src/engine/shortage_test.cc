// What a rank meets when the system gives no more: in a job of two processes the n-th allocation,
// or the n-th system call, of one of them fails, for every n from joining to leaving. Every end is
// one of three: all goes well; an error, with the other rank told; or the process ends with the
// line that says that it has no memory left. Never a broken invariant, never a hang.
#include <dlfcn.h>
#include <fmt/format.h>
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

#include "base/try.h"
#include "farandole/engine.h"
#include "rendezvous/store_server.h"

namespace farandole {
namespace {

// Which call fails: of what kind, the how many-th, and how. Shared by all threads of a process.
struct Injection {
  std::atomic<const char*> kind = nullptr;  // null: none
  std::atomic<int> left = 0;                // calls of this kind until the one that fails
  std::atomic<int> error = 0;
  std::atomic<bool> fired = false;
};
Injection injection;

bool strikes(const char* kind) {
  const char* const wanted = injection.kind.load();
  if (wanted == nullptr || std::string_view(wanted) != kind) return false;
  if (injection.left.fetch_sub(1) != 1) return false;
  injection.fired = true;
  errno = injection.error;
  return true;
}

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace farandole

// The program's own definitions come before the library's.
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (farandole::strikes("new")) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" {
int memfd_create(const char* name, unsigned int flags) noexcept {
  if (farandole::strikes("memfd_create")) return -1;
  return farandole::real(&::memfd_create, "memfd_create")(name, flags);
}
int ftruncate(int descriptor, off_t bytes) noexcept {
  if (farandole::strikes("ftruncate")) return -1;
  return farandole::real(&::ftruncate, "ftruncate")(descriptor, bytes);
}
void* mmap(void* at, std::size_t bytes, int rights, int flags, int descriptor,
           off_t offset) noexcept {
  if (farandole::strikes("mmap")) return MAP_FAILED;
  return farandole::real(&::mmap, "mmap")(at, bytes, rights, flags, descriptor, offset);
}
int eventfd(unsigned int count, int flags) noexcept {
  if (farandole::strikes("eventfd")) return -1;
  return farandole::real(&::eventfd, "eventfd")(count, flags);
}
ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (farandole::strikes("sendmsg")) return -1;
  return farandole::real(&::sendmsg, "sendmsg")(socket, message, flags);
}
ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (farandole::strikes("recvmsg")) return -1;
  return farandole::real(&::recvmsg, "recvmsg")(socket, message, flags);
}
int poll(pollfd* entries, nfds_t count, int limit_ms) {
  if (farandole::strikes("poll")) return -1;
  return farandole::real(&::poll, "poll")(entries, count, limit_ms);
}
int epoll_wait(int epoll, struct epoll_event* events, int count, int limit_ms) {
  if (farandole::strikes("epoll_wait")) return -1;
  return static_cast<int>(::syscall(SYS_epoll_wait, epoll, events, count, limit_ms));
}
ssize_t write(int descriptor, const void* bytes, std::size_t count) {
  if (farandole::strikes("write")) return -1;
  return ::syscall(SYS_write, descriptor, bytes, count);
}
int fcntl(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  if (farandole::strikes("fcntl")) return -1;
  return static_cast<int>(::syscall(SYS_fcntl, descriptor, command, argument));
}
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)

namespace farandole {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHangGuard(60'000);

// How a rank ended, by its exit status.
enum Ending : int { kWell = 40, kError, kWrongResult, kHangs, kNeverStruck };

// What the struck rank says, and where the other one puts its error; seen by the parent.
struct Told {
  std::array<char, 2048> text{};
  std::atomic<bool> fired = false;
  std::atomic<bool> formed = false;
};

void note(Told& told, const Status& status) {
  const auto bytes = std::min(status.message().size(), told.text.size() - 1);
  std::copy_n(status.message().begin(), bytes, told.text.begin());
}

struct Job {
  std::array<Told, 2> told;
  int errors = -1;  // what the struck rank writes on standard error
};

std::string text_in(int file) {
  std::string text(4096, '\0');
  const ssize_t bytes = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

bool finishes(Engine& engine, const Submission& submission, Outcome& outcome) {
  const auto handle = engine.submit(submission);
  if (!handle.ok()) {
    outcome.status = handle.status();
    return true;
  }
  if (!engine.wait(*handle, kHangGuard)) return false;
  outcome = engine.take(*handle);
  return true;
}

Submission numbers_of(Operation operation, std::vector<float>& values) {
  Submission submission;
  submission.operation = operation;
  submission.name = "the gradients of this model's embedding";  // long enough to need memory
  submission.dtype = DType::kFloat32;
  submission.shape = {static_cast<std::int64_t>(values.size())};
  submission.input = values.data();
  submission.output = values.data();
  return submission;
}

// Two tensors that lie apart, in one step.
Status reduce_together(Engine& engine) {
  std::vector<float> first(1000, 1.0F);
  std::vector<float> second(1000, 2.0F);
  std::vector<Submission> batch = {numbers_of(Operation::kAllreduce, first),
                                   numbers_of(Operation::kAllreduce, second)};
  batch[1].name += ", turned";
  const auto handles = engine.submit_batch(batch, kHangGuard);
  FARANDOLE_TRY(handles.status());
  for (const Handle handle : *handles) FARANDOLE_TRY(engine.take(handle).status);
  return first.back() == 2.0F && second.back() == 4.0F ? Status() : Status::stop("a wrong sum");
}

// Joins, reduces, gathers, adds a group, leaves.
Ending take_part(int rank, int descriptor, Told& told) {
  EngineOptions options;
  options.heap_bytes = 64 << 20;
  options.bucket_bytes = 1 << 20;
  options.topology = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2};
  options.rendezvous_descriptor = descriptor;
  options.start_timeout = kHangGuard;
  auto engine = Engine::create(options);
  const auto fails = [&](const Status& status) {
    note(told, status);
    return !status.ok();
  };
  if (fails(engine.status())) return kError;
  told.formed = true;
  std::vector<float> values(100'000, 1.0F);
  Outcome reduced;
  if (!finishes(**engine, numbers_of(Operation::kAllreduce, values), reduced)) return kHangs;
  if (fails(reduced.status)) return kError;
  if (std::accumulate(values.begin(), values.end(), 0.0) != 200'000.0) return kWrongResult;
  Outcome gathered;
  if (!finishes(**engine, numbers_of(Operation::kAllgather, values), gathered)) return kHangs;
  if (fails(gathered.status)) return kError;
  if (gathered.received_rows != std::vector<std::int64_t>{100'000, 100'000}) return kWrongResult;
  if (fails(reduce_together(**engine))) return kError;
  const auto group = (*engine)->add_group({1});
  if (fails(group.status())) return kError;
  if (fails((*engine)->remove_group(*group))) return kError;
  Outcome met;
  if (!finishes(**engine, Submission{}, met)) return kHangs;
  if (fails(met.status)) return kError;
  (void)(*engine)->shutdown("done");
  return kWell;
}

struct Strike {
  const char* kind;
  int nth;
  int error;
};

// Both ranks as processes of their own, of which rank `struck` is struck. Serves their rendezvous,
// and, as the launcher does, ends the other one a while after one has failed; but only if it still
// waits for it in create(): later it has to notice by itself.
std::array<int, 2> run_struck(const Strike& strike, int struck, Job& job) {
  auto server = StoreServer::create("the launcher");
  EXPECT_TRUE(server.ok());
  std::array<pid_t, 2> children{};
  std::vector<Descriptor> ends;
  for (int rank = 0; rank < 2; ++rank)
    ends.push_back(*(*server)->add_client("rank " + std::to_string(rank)));
  for (int rank = 0; rank < 2; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    children[index] = ::fork();
    if (children[index] != 0) continue;
    ::alarm(90);  // the last guard
    if (rank == struck) {
      ::dup2(job.errors, STDERR_FILENO);
      injection.error = strike.error;
      injection.left = strike.nth;
      injection.kind = strike.kind;
    }
    Ending ending = kError;
    try {
      ending = take_part(rank, ends[index].get(), job.told[index]);
    } catch (const std::bad_alloc&) {
      note(job.told[index], Status::stop("std::bad_alloc"));
    }
    injection.kind = nullptr;
    job.told[index].fired = injection.fired.load();
    ::_exit(ending);
  }
  ends.clear();
  std::array<int, 2> statuses{};
  TimePoint give_up = TimePoint::max();
  for (int left = 2; left > 0;) {
    pollfd polled{(*server)->readiness(), POLLIN, 0};
    ::poll(&polled, 1, 5);
    (void)(*server)->serve_ready();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      if (children[rank] == 0 || ::waitpid(children[rank], &statuses[rank], WNOHANG) == 0) continue;
      children[rank] = 0;
      --left;
      if (!WIFEXITED(statuses[rank]) || WEXITSTATUS(statuses[rank]) != kWell)
        give_up = std::chrono::steady_clock::now() + milliseconds(100);
    }
    if (std::chrono::steady_clock::now() < give_up) continue;
    for (std::size_t rank = 0; rank < 2; ++rank)
      if (children[rank] != 0 && !job.told[rank].formed) ::kill(children[rank], SIGTERM);
    give_up = TimePoint::max();
  }
  return statuses;
}

class ShortageTest : public ::testing::Test {
 protected:
  ShortageTest()
      : job_(*new(::mmap(nullptr, sizeof(Job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)) Job) {}
  ~ShortageTest() override { ::munmap(&job_, sizeof(Job)); }

  // Strikes the calls one after another until there is none any more: all of them, or from a random
  // one on every step-th. Which rank has to wait, and so to make such a call at all, may be chance.
  void strike_all(const char* kind, int error, int step = 1) {
    const int before = strikes_;
    for (int struck = 0; struck < 2; ++struck) {
      for (int nth = 1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(step));;
           nth += step) {
        new (&job_) Job;
        const Descriptor errors(::memfd_create("errors", MFD_CLOEXEC));
        job_.errors = errors.get();
        const auto statuses = run_struck({kind, nth, error}, struck, job_);
        const auto mine = static_cast<std::size_t>(struck);
        const bool reached = job_.told[mine].fired || !WIFEXITED(statuses[mine]);
        SCOPED_TRACE(fmt::format("{} number {} of rank {}; it says: {}; the other: {}", kind, nth,
                                 struck, job_.told[mine].text.data(),
                                 job_.told[1 - mine].text.data()));
        judge(statuses, mine);
        if (HasFailure()) return;
        if (!reached) break;
        ++strikes_;
      }
    }
    EXPECT_GT(strikes_, before) << "no rank ever called " << kind;
  }

  void judge(const std::array<int, 2>& statuses, std::size_t struck) {
    const int mine = statuses[struck];
    const int other = statuses[1 - struck];
    if (WIFSIGNALED(mine)) {
      // The end for want of memory, which is said on standard error.
      EXPECT_EQ(WTERMSIG(mine), SIGABRT);
      EXPECT_THAT(text_in(job_.errors), ::testing::HasSubstr("has no memory left (malloc failed)"));
      ++endings_["abort"];
    } else {
      ASSERT_THAT(WEXITSTATUS(mine), ::testing::AnyOf(kWell, kError));
      ++endings_[WEXITSTATUS(mine) == kWell ? "well" : "error"];
      if (WEXITSTATUS(mine) == kError) {
        EXPECT_STRNE(job_.told[struck].text.data(), "");
      }
    }
    if (WIFSIGNALED(other)) {
      EXPECT_EQ(WTERMSIG(other), SIGTERM);
      EXPECT_FALSE(job_.told[1 - struck].formed);
      ++endings_["other ended by the launcher"];
    } else {
      ASSERT_THAT(WEXITSTATUS(other), ::testing::AnyOf(kWell, kError));
    }
  }

  void print() const {
    std::printf("%d strikes:", strikes_);
    for (const auto& [ending, count] : endings_) std::printf(" %d %s;", count, ending.c_str());
    std::printf("\n");
  }

  Job& job_;
  int strikes_ = 0;
  std::map<std::string, int> endings_;
};

TEST_F(ShortageTest, OfMemoryForOneAllocation) {
  strike_all("new", ENOMEM, 5);  // of 800 a rank
  print();
  EXPECT_GT(endings_["error"], 20);
  EXPECT_GT(endings_["abort"], 3);
}

TEST_F(ShortageTest, OfSystemResources) {
  strike_all("memfd_create", EMFILE);
  strike_all("ftruncate", ENOMEM);
  strike_all("mmap", ENOMEM);
  strike_all("eventfd", EMFILE);
  strike_all("fcntl", EMFILE);
  print();
  EXPECT_EQ(endings_["abort"], 0);
  EXPECT_GT(endings_["error"], 20);
}

TEST_F(ShortageTest, InterruptionsChangeNothing) {
  for (const char* const kind : {"sendmsg", "recvmsg", "poll", "write", "epoll_wait", "ftruncate"})
    strike_all(kind, EINTR);
  for (const char* const kind : {"sendmsg", "recvmsg"}) strike_all(kind, EAGAIN);
  strike_all("sendmsg", ENOBUFS);
  print();
  EXPECT_GT(strikes_, 50);
  EXPECT_EQ(endings_["error"] + endings_["abort"], 0);
}

}  // namespace
}  // namespace farandole
