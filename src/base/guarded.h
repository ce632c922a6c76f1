// Guarded<T>: the lock holds the data. The value can only be reached through a lock() guard, so
// code that forgets the lock does not compile. Waiting uses the same guard. Taking a lock twice in
// one function would deadlock; clang's thread-safety analysis rejects it.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/platform.h"

namespace farandole {

// A condition variable for some of the threads that wait for a Guarded value. They can be woken
// without waking the other threads.
class WaitQueue {
 public:
  void notify_all() { condition_.notify_all(); }

 private:
  template <class T>
  friend class Guarded;

  // Does the same as condition_.wait(lock, ready), which must not be called: GCC 12 gave wait() a
  // new symbol version, which the C++ library of RHEL 9 does not have (docs/decisions/0044).
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    while (!ready()) ::pthread_cond_wait(condition_.native_handle(), lock.mutex()->native_handle());
  }

  std::condition_variable condition_;
};

template <class T>
class Guarded {
 public:
  // A guard: gives access to the value as long as the guard exists. Cannot be copied or moved; use
  // it within one scope.
  class FARANDOLE_THREAD_SAFETY(scoped_lockable) Lock {
   public:
    explicit Lock(Guarded& owner) FARANDOLE_THREAD_SAFETY(acquire_capability(owner.mutex_))
        : owner_(owner), lock_(owner.mutex_) {}
    ~Lock() FARANDOLE_THREAD_SAFETY(release_capability()) {}
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    T& operator*() { return owner_.value_; }
    T* operator->() { return &owner_.value_; }

    // Releases the lock during the wait. Returns true if `ready` returned true before the deadline.
    template <class Ready>
    bool wait_until(std::chrono::steady_clock::time_point deadline, Ready ready) {
      return wait_at(owner_.default_queue_, deadline, ready);
    }
    template <class Ready>
    void wait(Ready ready) {
      wait_at(owner_.default_queue_, ready);
    }
    // Like wait() and wait_until(), but only notifications of `queue` end the wait.
    template <class Ready>
    void wait_at(WaitQueue& queue, Ready ready) {
      queue.wait(lock_, [&] { return ready(owner_.value_); });
    }
    template <class Ready>
    bool wait_at(WaitQueue& queue, std::chrono::steady_clock::time_point deadline, Ready ready) {
      return queue.condition_.wait_until(lock_, deadline, [&] { return ready(owner_.value_); });
    }

   private:
    Guarded& owner_;
    std::unique_lock<std::mutex> lock_;
  };

  template <class... Arguments>
  explicit Guarded(Arguments&&... arguments) : value_(std::forward<Arguments>(arguments)...) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  // The thread-safety analysis cannot follow a lock that is returned to the caller, so this
  // function is excluded from the analysis.
  Lock lock() FARANDOLE_THREAD_SAFETY(acquire_capability(mutex_), no_thread_safety_analysis) {
    return Lock(*this);
  }
  void notify_one() { default_queue_.condition_.notify_one(); }
  void notify_all() { default_queue_.notify_all(); }

 private:
  struct FARANDOLE_THREAD_SAFETY(capability("mutex")) Mutex : std::mutex {};

  Mutex mutex_;
  WaitQueue default_queue_;
  T value_;
};

}  // namespace farandole
