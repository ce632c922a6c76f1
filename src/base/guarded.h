// Guarded<T>: the lock holds the data. The value can only be reached through a lock() guard, so
// forgetting the lock does not compile. Waiting uses the same guard.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace farandole {

template <class T>
class Guarded {
 public:
  // Access to the value while this lives. Neither copies nor moves; borrow it within one scope.
  class Lock {
   public:
    explicit Lock(Guarded& owner) : owner_(owner), lock_(owner.mutex_) {}
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

   private:
    Guarded& owner_;
    std::unique_lock<std::mutex> lock_;
  };

  template <class... Arguments>
  explicit Guarded(Arguments&&... arguments) : value_(std::forward<Arguments>(arguments)...) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  Lock lock() { return Lock(*this); }
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  T value_;
};

}  // namespace farandole
