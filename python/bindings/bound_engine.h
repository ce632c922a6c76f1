// farandole.core.Engine: wraps one Engine for Python. While a call waits, other Python threads run,
// and Ctrl-C ends the wait. In a forked child, the engine is not used any more.
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

// The longest time that a wait keeps Python from handling signals.
inline constexpr std::chrono::milliseconds kSlice{100};

// What the engines of this process share.
struct BoundContext {
  std::shared_ptr<ProcessContext> context = make_process_context();  // shared with the engines
};

// All methods need the GIL. farandole/lifecycle.py decides which engine the process uses.
class BoundEngine {
 public:
  // Meets the other ranks. Raises KeyboardInterrupt, or whatever a signal handler raises meanwhile.
  // `topology` is rank and size of a job on this host whose ranks meet by `rendezvous_id`. If it is
  // empty, the environment says both; `rendezvous_id` is then added to the rendezvous id of another
  // launcher's job.
  BoundEngine(const BoundContext& context, std::vector<std::vector<int>> groups,
              const std::string& rendezvous_id, const std::vector<int>& topology);

  // The engine for new calls; the pointer keeps it alive meanwhile. Raises GroupLostError once
  // shutdown() has begun. In a forked child, the engine itself rejects calls.
  std::shared_ptr<Engine> running() const;
  // The engine for calls in flight. Raises GroupLostError only when shutdown() is done: until then,
  // the engine may still write to their memory, and only the engine knows when it has stopped.
  std::shared_ptr<Engine> present() const;
  // Runs `work(engine)` for a new call, without the GIL.
  template <class Work>
  auto unlocked(Work work) {
    return without_gil(running(), work);
  }
  // These work in every state.
  const RankTopology& topology() const { return topology_; }
  std::size_t bucket_bytes() const { return bucket_bytes_; }
  const std::map<std::string, std::int64_t>& settings() const { return settings_; }
  bool forked() const { return forked_; }

  GroupId add_group(const std::vector<int>& ranks);
  void remove_group(GroupId group);
  // `path` is a file name as bytes.
  void start_timeline(const nanobind::bytes& path, bool mark_cycles);
  void stop_timeline();
  // Leaves and frees everything but memory that Python still has. When it returns, no thread is
  // without the GIL inside the engine, nor will one be: one that came back to an interpreter which
  // ends would crash.
  void shutdown(const std::string& reason, LeaveCause cause, const std::string& traceback);
  void abandon_after_fork();
  bool poll(Handle handle) const;
  // Waits until the call is done. If a signal handler raises, the wait ends but the call goes on.
  void wait(Handle handle);
  // The program has the outcome: forgets the handle, and the call's name may be used again.
  void release(Handle handle) const;
  // Nobody will release it; poll() says when the memory is free.
  void drop(Handle handle) const;

 private:
  // Counts the threads inside the engine without the GIL. Must be made and destroyed with the GIL.
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

  // Owned by this object until shutdown() is done, and by the calls that are running.
  std::shared_ptr<Engine> engine_;
  bool leaving_ = false;  // shutdown() has begun
  std::atomic<int> visitors_ = 0;
  RankTopology topology_;
  std::size_t bucket_bytes_ = 0;
  std::map<std::string, std::int64_t> settings_;
  bool forked_ = false;
};

void bind_engine(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
