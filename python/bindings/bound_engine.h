// farandole.core.Engine: one Engine with the manners that Python expects. Long waits let other
// Python threads run and end on Ctrl-C; in a forked child the engine is never touched again.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "farandole/engine.h"

namespace farandole::python {

// How long a wait may keep Python from looking at signals.
inline constexpr std::chrono::milliseconds kSlice{100};

// All methods need the GIL. Which process-wide engine there is, farandole/lifecycle.py decides.
class BoundEngine {
 public:
  // Meets the others; raises KeyboardInterrupt or whatever a signal handler raised meanwhile.
  // `place`: rank and size, of a job on this host alone whose ranks meet by `meeting`; empty for
  // what the environment says, where `meeting` is added to that of another launcher's job.
  BoundEngine(std::vector<std::vector<int>> groups, const std::string& meeting,
              const std::vector<int>& place);

  // For new calls: keeps the engine while it is used. Raises GroupLostError from the beginning of
  // shutdown(). In a forked child the engine itself refuses calls.
  std::shared_ptr<Engine> running() const;
  // For calls in flight: raises GroupLostError when shutdown() is done. Until then the engine may
  // still write to their memory, and only it knows.
  std::shared_ptr<Engine> present() const;
  // Runs `work(engine)` without the GIL, for a new call.
  template <class Work>
  auto unlocked(Work work) {
    return without_gil(running(), work);
  }
  // These answer always.
  const Place& place() const { return place_; }
  std::size_t bucket_bytes() const { return bucket_bytes_; }
  std::uint64_t check_parameters() const { return check_parameters_; }
  bool forked() const { return forked_; }

  GroupId add_group(const std::vector<int>& ranks);
  void remove_group(GroupId group);
  // `path`: the bytes of a file name.
  void start_timeline(const nanobind::bytes& path, bool mark_cycles);
  void stop_timeline();
  // Leaves and frees everything but memory that Python still has. When it returns, no thread is
  // without the GIL inside the engine, nor will one be: one that came back to an interpreter which
  // ends would crash.
  void shutdown(const std::string& reason, const std::string& traceback);
  void abandon_after_fork();
  bool poll(Handle handle) const;
  // Until the call is done. An exception of a signal handler ends the waiting, not the call.
  void wait(Handle handle);
  // Nobody will take the outcome; poll() says when the memory is free.
  void drop(Handle handle) const;

 private:
  // Counts a thread that has no GIL. Made and ended with the GIL.
  class Visit {
   public:
    explicit Visit(std::atomic<int>& visitors) : visitors_(visitors) { ++visitors_; }
    ~Visit() {
      --visitors_;
      visitors_.notify_all();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    std::atomic<int>& visitors_;
  };

  template <class Work>
  auto without_gil(const std::shared_ptr<Engine>& engine, Work work) {
    const Visit visit(visitors_);
    const nanobind::gil_scoped_release released;
    return work(*engine);
  }

  // Owned by us until shutdown() is done, and by the calls that are running.
  std::shared_ptr<Engine> engine_;
  bool leaving_ = false;  // shutdown() has begun
  std::atomic<int> visitors_ = 0;
  Place place_;
  std::size_t bucket_bytes_ = 0;
  std::uint64_t check_parameters_ = 0;
  bool forked_ = false;
};

void bind_engine(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
