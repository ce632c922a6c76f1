// Guarded<T>: the lock holds the data. The value can only be reached through a lock() guard, so
// forgetting the lock does not compile. Waiting uses the same guard. Taking a lock twice in one
// function, which would wait for ever, does not pass clang's analysis.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/platform.h"

namespace farandole {

// A place where some of those who wait for a Guarded value do so, to be woken apart from the
// others.
class WaitPlace {
 public:
  void notify_all() { changed_.notify_all(); }

 private:
  template <class T>
  friend class Guarded;
  std::condition_variable changed_;
};

template <class T>
class Guarded {
 public:
  // Access to the value while this lives. Neither copies nor moves; borrow it within one scope.
  class FARANDOLE_THREAD_SAFETY(scoped_lockable) Lock {
   public:
    explicit Lock(Guarded& owner) FARANDOLE_THREAD_SAFETY(acquire_capability(owner.mutex_))
        : owner_(owner), lock_(owner.mutex_) {}
    ~Lock() FARANDOLE_THREAD_SAFETY(release_capability()) {}
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

    T& operator*() { return owner_.value_; }
    T* operator->() { return &owner_.value_; }

    // Releases the lock while waiting for notify; true if `ready` held before the deadline.
    template <class Ready>
    bool wait_until(std::chrono::steady_clock::time_point deadline, Ready ready) {
      return owner_.changed_.wait_until(lock_, deadline, [&] { return ready(owner_.value_); });
    }
    template <class Ready>
    void wait(Ready ready) {
      owner_.changed_.wait(lock_, [&] { return ready(owner_.value_); });
    }
    // Is woken by the place's notify only.
    template <class Ready>
    void wait_at(WaitPlace& place, Ready ready) {
      place.changed_.wait(lock_, [&] { return ready(owner_.value_); });
    }
    template <class Ready>
    bool wait_at(WaitPlace& place, std::chrono::steady_clock::time_point deadline, Ready ready) {
      return place.changed_.wait_until(lock_, deadline, [&] { return ready(owner_.value_); });
    }

   private:
    Guarded& owner_;
    std::unique_lock<std::mutex> lock_;
  };

  template <class... Arguments>
  explicit Guarded(Arguments&&... arguments) : value_(std::forward<Arguments>(arguments)...) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  // The analysis cannot see that the lock travels to the caller, so the body is left out.
  Lock lock() FARANDOLE_THREAD_SAFETY(acquire_capability(mutex_), no_thread_safety_analysis) {
    return Lock(*this);
  }
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  struct FARANDOLE_THREAD_SAFETY(capability("mutex")) Mutex : std::mutex {};

  Mutex mutex_;
  std::condition_variable changed_;
  T value_;
};

}  // namespace farandole
