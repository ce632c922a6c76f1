#include "base/guarded.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace farandole {
namespace {

using namespace std::chrono_literals;

constexpr auto kTestTimeout = 60s;

TEST(Guarded, no_change_of_a_thread_is_lost) {
  Guarded<int> counter(0);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&] {
        for (int i = 0; i < 10'000; ++i) ++*counter.lock();
      });
  }
  EXPECT_EQ(*counter.lock(), 40'000);
}

TEST(Guarded, wait_sees_the_change_of_another_thread) {
  Guarded<std::vector<int>> queue;
  const std::jthread writer([&] {
    queue.lock()->push_back(7);
    queue.notify_one();
  });
  auto lock = queue.lock();
  lock.wait([](const std::vector<int>& values) { return !values.empty(); });
  EXPECT_EQ(lock->front(), 7);
}

TEST(Guarded, notifying_a_queue_wakes_the_threads_that_wait_in_it) {
  Guarded<bool> ready(false);
  WaitQueue wait_queue;
  const std::jthread writer([&] {
    *ready.lock() = true;
    wait_queue.notify_all();
  });
  auto lock = ready.lock();
  lock.wait_at(wait_queue, [](bool value) { return value; });
  EXPECT_TRUE(*lock);
}

TEST(Guarded, wait_until_returns_whether_the_condition_became_true) {
  Guarded<bool> ready(false);
  EXPECT_FALSE(ready.lock().wait_until(std::chrono::steady_clock::now() + 1ms,
                                       [](bool value) { return value; }));
  const std::jthread writer([&] {
    *ready.lock() = true;
    ready.notify_all();
  });
  EXPECT_TRUE(ready.lock().wait_until(std::chrono::steady_clock::now() + kTestTimeout,
                                      [](bool value) { return value; }));
}

}  // namespace
}  // namespace farandole
