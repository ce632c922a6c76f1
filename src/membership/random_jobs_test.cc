// Random jobs: workers ask, fail, stop and finish in random order, and the rules of membership.h
// are checked after every decision.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "membership/membership.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RandomJob {
 public:
  explicit RandomJob(unsigned seed) : random_(seed) {
    options_.workers = between(1, 6);
    options_.workers_min = between(1, options_.workers);
    options_.shortage_max = seconds(100'000);
    options_.workers_max = between(options_.workers, 6);
    workers_.resize(static_cast<std::size_t>(options_.workers));
    job_.emplace(options_);
    for (int worker = 0; worker < options_.workers; ++worker) start(worker);
    for (int worker = 0; worker < options_.workers; ++worker) ask(worker);
  }

  void run(int events) {
    for (int i = 0; i < events && !is_over_; ++i) {
      const int worker = between(0, slots() - 1);
      now_ += milliseconds(between(0, 800));
      switch (between(0, 12)) {
        case 0:
        case 1:
          end(worker);
          break;
        case 2:
          stop(worker);
          break;
        case 3:
          leave(worker);
          break;
        case 4:
          open(worker);
          break;
        case 5:
          if (slots() < 8) add_slot();
          break;
        default:
          ask(worker);
      }
      decide();
    }
  }

  // Without further faults, all workers form one group.
  void calm_down() {
    for (int i = 0; i < 200 && !is_over_; ++i) {
      now_ += seconds(1);
      for (int worker = 0; worker < slots(); ++worker) open(worker);
      for (int worker = 0; worker < slots(); ++worker)
        if (!is_complete()) ask(worker);
      decide();
    }
  }

  bool is_over() const { return is_over_; }
  bool is_complete() const {
    const int size = static_cast<int>(last_.workers.size());
    return size == std::min(slots(), options_.workers_max) &&
           std::ranges::count_if(workers_, &Worker::runs) == size;
  }

 private:
  struct Worker {
    bool runs = false;
    bool waits = false;
    bool is_member = false;
    bool is_stopped = false;
    bool has_state = false;
    bool is_leaving = false;
    bool is_closed = false;
  };

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::ptrdiff_t staying() const {
    return std::ranges::count_if(workers_,
                                 [](const Worker& one) { return one.runs && !one.is_leaving; });
  }
  int slots() const { return static_cast<int>(workers_.size()); }
  Worker& worker(int number) { return workers_[static_cast<std::size_t>(number)]; }

  bool somebody_has_state() const { return std::ranges::any_of(workers_, &Worker::has_state); }
  void start(int number) {
    ASSERT_FALSE(worker(number).runs);
    ASSERT_FALSE(worker(number).is_closed);
    worker(number) = {.runs = true};
    job_->worker_started(number, now_);
  }
  void ask(int number) {
    Worker& one = worker(number);
    if (!one.runs || one.waits || one.is_stopped) return;
    one.waits = true;
    // Some members have been sent the state since the last epoch.
    if (one.is_member && somebody_has_state() && between(0, 3) > 0) one.has_state = true;
    if (one.is_member && last_.number == 1 && between(0, 1) > 0) one.has_state = true;
    somebody_had_state_ = somebody_had_state_ || one.has_state;
    const std::int64_t left = one.is_member ? last_.number : 0;
    job_->rank_wanted(number, left, one.has_state ? left : 0);
    decide();
  }
  void end(int number) {
    if (!worker(number).runs) return;
    worker(number) = {.is_closed = worker(number).is_closed};
    job_->worker_ended(number, false, now_);
  }
  void leave(int number) {
    worker(number).is_closed = true;
    worker(number).is_leaving = worker(number).runs;
    job_->slot_leaves(number);
  }
  void open(int number) {
    worker(number).is_closed = false;
    if (staying() < options_.workers_max) worker(number).is_leaving = false;
    job_->slot_opened(number);
  }
  void add_slot() {
    workers_.emplace_back();
    job_->add_slots(1);
  }
  void stop(int number) {
    if (!worker(number).runs) return;
    worker(number).is_stopped = true;
    job_->worker_stopped(number, now_);
  }

  void decide() {
    if (is_over_) return;
    const auto decisions = job_->decide(now_);
    is_over_ = !decisions.end.empty();
    for (const int number : decisions.stopped) {
      ASSERT_TRUE(worker(number).is_stopped);
      end(number);
    }
    for (const int number : decisions.starts) start(number);
    if (decisions.epoch) check(*decisions.epoch);
    for (const int number : decisions.superfluous) {
      ASSERT_TRUE(worker(number).is_leaving) << "nobody has succeeded";
      ASSERT_FALSE(worker(number).is_member);
      end(number);
    }
    ASSERT_LE(staying(), options_.workers_max);
  }

  void check(const Epoch& formed) {
    ASSERT_EQ(formed.number, last_.number + 1);
    ASSERT_GE(static_cast<int>(formed.workers.size()), options_.workers_min);
    int leaving = 0;
    const std::set<int> members(formed.workers.begin(), formed.workers.end());
    ASSERT_EQ(members.size(), formed.workers.size());
    for (const int number : formed.workers) {
      ASSERT_TRUE(worker(number).runs);
      ASSERT_TRUE(worker(number).waits);
      ASSERT_FALSE(worker(number).is_stopped);
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& one = workers_[i];
      const bool is_taken = members.contains(static_cast<int>(i));
      if (one.is_leaving) {
        ASSERT_TRUE(!is_taken || one.waits);
        ASSERT_TRUE(!one.is_member || one.waits) << "the fence: it has left its group";
        leaving += is_taken ? 1 : 0;
        continue;
      }
      ASSERT_EQ(one.waits && !one.is_stopped, is_taken) << "all who wait are taken";
      ASSERT_FALSE(one.runs && one.is_member && !is_taken) << "a member is left behind";
    }
    const int size = static_cast<int>(members.size());
    ASSERT_TRUE(leaving <= 1 || size == options_.workers_min) << "more than needed stay";
    ASSERT_TRUE(leaving == 0 || worker(formed.workers[0]).is_leaving ||
                size == options_.workers_min)
        << "only it has the state, or too few are left";
    if (last_.number > 0) {
      ASSERT_TRUE(worker(formed.workers[0]).is_member);
      ASSERT_TRUE(!somebody_had_state_ || worker(formed.workers[0]).has_state);
      for (std::size_t rank = 1; rank < std::min(formed.workers.size(), last_.workers.size());
           ++rank) {
        Worker& former = worker(last_.workers[rank]);
        if (!former.is_member || last_.workers[rank] == formed.workers[0]) continue;
        if (!members.contains(last_.workers[rank])) continue;  // it leaves
        ASSERT_EQ(formed.workers[rank], last_.workers[rank]) << "a survivor keeps its rank";
      }
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      workers_[i].is_member = members.contains(static_cast<int>(i));
      if (workers_[i].is_member) workers_[i].waits = false;
    }
    last_ = formed;
  }

  std::mt19937 random_;
  Membership::Options options_;
  std::vector<Worker> workers_;
  std::optional<Membership> job_;
  TimePoint now_ = TimePoint{} + seconds(1000);
  Epoch last_;
  bool somebody_had_state_ = false;
  bool is_over_ = false;
};

TEST(RandomJobs, KeepTheRulesAndComeTogetherAgain) {
  int complete = 0;
  for (unsigned seed = 1; seed <= 2000 && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomJob job(seed);
    job.run(25);
    job.calm_down();
    EXPECT_TRUE(job.is_over() || job.is_complete());
    complete += job.is_complete() ? 1 : 0;
  }
  EXPECT_GT(complete, 500) << "too few jobs survive to say anything";
}

}  // namespace
}  // namespace farandole
