#include "rendezvous/clock_offset.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "rendezvous/memory_store.h"

namespace farandole {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// A Store on a host with a clock that is an hour ahead. Its answers take longer than the requests;
// every fourth answer is fast.
class StoreAnHourAhead final : public Store {
 public:
  Status set(const std::string& key, Bytes value) override {
    return store_.set(key, std::move(value));
  }
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& end_key,
                                   const WaitLimit& limit) override {
    return store_.wait_for_all(keys, end_key, limit);
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    return store_.add(key, delta);
  }
  Status remove_all(const std::vector<std::string>& keys) override {
    return store_.remove_all(keys);
  }
  Result<TimePoint> clock() override {
    const TimePoint now = std::chrono::steady_clock::now() + hours(1);
    if (++requests_ % 4 != 0) std::this_thread::sleep_for(milliseconds(20));
    return now;
  }

 private:
  MemoryStore store_;
  int requests_ = 0;
};

TEST(ClockOffset, IsWithinItsError) {
  StoreAnHourAhead store;
  const auto measured_offset = measure_clock_offset(store);
  ASSERT_TRUE(measured_offset.ok());
  EXPECT_LE(measured_offset->offset, hours(1) + measured_offset->error);
  EXPECT_GE(measured_offset->offset, hours(1) - measured_offset->error);
  EXPECT_GT(measured_offset->error, Duration());
}

TEST(ClockOffset, OfTheSameHostIsWithinItsError) {
  MemoryStore store;
  const auto measured_offset = measure_clock_offset(store);
  ASSERT_TRUE(measured_offset.ok());
  EXPECT_LE(measured_offset->offset, measured_offset->error);
  EXPECT_GE(measured_offset->offset, -measured_offset->error);
}

}  // namespace
}  // namespace farandole
