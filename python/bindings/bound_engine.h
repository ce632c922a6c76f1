// farandole.core.Engine: wraps one Engine for Python. While a call waits, other Python threads run,
// and Ctrl-C ends the wait. A forked child cannot use the engine.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "farandole/engine.h"

namespace farandole::python {

// While a thread waits, it lets Python run the signal handlers once in this time.
inline constexpr std::chrono::milliseconds kSignalCheckInterval{100};

// The state that all engines of this process share.
struct BoundContext {
  std::shared_ptr<ProcessContext> context = make_process_context();  // each engine owns it, too
};

// All methods need the GIL. farandole/lifecycle.py decides which engine the process uses.
class BoundEngine {
 public:
  // Connects to the other ranks. If a signal handler raises an exception, such as
  // KeyboardInterrupt, before the ranks are connected, the constructor throws this exception.
  // `topology` is this rank and the size of the job, and the ranks find each other by
  // `rendezvous_id`. If `topology` is empty, the environment gives the rank and the size. In this
  // case, if a launcher other than `farandole run` has started the job, `rendezvous_id` is appended
  // to the id that the environment gives.
  //
  // If `is_subset_of_job`, the engine connects only some ranks of a larger job. `topology` must
  // then be given, and the launcher does not see what this engine does. If `on_one_host`, these
  // ranks find each other without the launcher; otherwise, they use the Stores of the larger job.
  BoundEngine(const BoundContext& context, std::vector<std::vector<int>> groups,
              const std::string& rendezvous_id, const std::vector<int>& topology,
              bool is_subset_of_job, bool on_one_host);

  // Returns the engine for new calls. The returned pointer keeps the engine alive. Raises
  // GroupLostError if shutdown() has begun. In a forked child, this function still returns the
  // engine, which then rejects all calls.
  std::shared_ptr<Engine> engine_for_new_calls() const;
  // Returns the engine for calls in flight. Raises GroupLostError only when shutdown() is done.
  // Until then, the engine may still write to the memory of these calls, and only the engine knows
  // when its last write is done.
  std::shared_ptr<Engine> engine_for_calls_in_flight() const;
  // Runs `work(engine)` for a new call, without the GIL.
  template <class Work>
  auto run_in_engine(Work work) {
    return without_gil(engine_for_new_calls(), work);
  }
  // The next three functions work in every state, even after shutdown().
  const RankTopology& topology() const { return topology_; }
  const std::map<std::string, std::string>& settings() const { return settings_; }
  bool forked() const { return is_forked_child_; }

  GroupId add_group(const std::vector<int>& ranks);
  void remove_group(GroupId group);
  // `path` is a file name as bytes.
  void start_timeline(const nanobind::bytes& path, bool mark_cycles);
  void stop_timeline();
  // Leaves the job and frees everything except memory that Python still uses. When shutdown()
  // returns, no thread is inside the engine without the GIL, and no thread can enter the engine.
  // Otherwise, a thread could leave the engine while the interpreter is ending, and would crash.
  void shutdown(const std::string& reason, LeaveCause cause, const std::string& traceback);
  void abandon_after_fork();
  bool poll(Handle handle) const;
  // Waits until the call is done. If a signal handler raises an exception, the wait ends but the
  // call continues.
  void wait(Handle handle);
  // Forgets the handle after the program has got the outcome. Then the call's name may be used
  // again.
  void release(Handle handle) const;
  // Tells the engine that the program will not release this handle. Even after drop(), poll() says
  // whether the engine has finished using the memory of the call.
  void drop(Handle handle) const;

 private:
  // Counts the threads that are inside the engine without the GIL. Create and destroy such a
  // counter only while holding the GIL.
  class ThreadInsideEngine {
   public:
    explicit ThreadInsideEngine(std::atomic<int>& counter) : threads_inside_(counter) {
      ++threads_inside_;
    }
    ~ThreadInsideEngine() {
      --threads_inside_;
      threads_inside_.notify_all();
    }
    ThreadInsideEngine(const ThreadInsideEngine&) = delete;
    ThreadInsideEngine& operator=(const ThreadInsideEngine&) = delete;

   private:
    std::atomic<int>& threads_inside_;
  };

  template <class Work>
  auto without_gil(const std::shared_ptr<Engine>& engine, Work work) {
    const ThreadInsideEngine inside_engine(threads_inside_);
    const nanobind::gil_scoped_release gil_release;
    return work(*engine);
  }

  // This object owns the engine until shutdown() is done. A method that is running owns the engine,
  // too.
  std::shared_ptr<Engine> engine_;
  bool has_shutdown_begun_ = false;
  bool is_of_whole_job_ = false;
  std::atomic<int> threads_inside_ = 0;
  RankTopology topology_;
  std::map<std::string, std::string> settings_;
  bool is_forked_child_ = false;
};

void bind_engine(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
