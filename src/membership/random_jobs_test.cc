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
    workers_.resize(static_cast<std::size_t>(options_.workers));
    job_.emplace(options_);
    for (int worker = 0; worker < options_.workers; ++worker) start(worker);
    for (int worker = 0; worker < options_.workers; ++worker) ask(worker);
  }

  void run(int events) {
    for (int i = 0; i < events && !is_over_; ++i) {
      const int worker = between(0, options_.workers - 1);
      now_ += milliseconds(between(0, 800));
      switch (between(0, 9)) {
        case 0:
        case 1:
          end(worker);
          break;
        case 2:
          stop(worker);
          break;
        default:
          ask(worker);
      }
      decide();
    }
  }

  // Without further faults, everybody comes together.
  void calm_down() {
    for (int i = 0; i < 200 && !is_over_; ++i) {
      now_ += seconds(1);
      for (int worker = 0; worker < options_.workers; ++worker)
        if (!is_complete()) ask(worker);
      decide();
    }
  }

  bool is_over() const { return is_over_; }
  bool is_complete() const {
    return static_cast<int>(last_.workers.size()) == options_.workers &&
           std::ranges::all_of(workers_, [](const Worker& worker) { return worker.runs; });
  }

 private:
  struct Worker {
    bool runs = false;
    bool waits = false;
    bool is_member = false;
    bool is_stopped = false;
    bool has_state = false;
  };

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Worker& worker(int number) { return workers_[static_cast<std::size_t>(number)]; }

  bool somebody_has_state() const { return std::ranges::any_of(workers_, &Worker::has_state); }
  void start(int number) {
    ASSERT_FALSE(worker(number).runs);
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
    job_->rank_wanted(number, one.has_state);
    decide();
  }
  void end(int number) {
    if (!worker(number).runs) return;
    worker(number) = {};
    job_->worker_ended(number, false, now_);
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
    ASSERT_TRUE(decisions.superfluous.empty()) << "nobody has succeeded";
    for (const int number : decisions.starts) start(number);
    if (decisions.epoch) check(*decisions.epoch);
  }

  void check(const Epoch& formed) {
    ASSERT_EQ(formed.number, last_.number + 1);
    ASSERT_GE(static_cast<int>(formed.workers.size()), options_.workers_min);
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
      ASSERT_EQ(one.waits && !one.is_stopped, is_taken) << "all who wait are taken";
      ASSERT_FALSE(one.runs && one.is_member && !is_taken) << "a member is left behind";
    }
    if (last_.number > 0) {
      ASSERT_TRUE(worker(formed.workers[0]).is_member);
      ASSERT_TRUE(!somebody_had_state_ || worker(formed.workers[0]).has_state);
      for (std::size_t rank = 1; rank < std::min(formed.workers.size(), last_.workers.size());
           ++rank) {
        Worker& former = worker(last_.workers[rank]);
        if (!former.is_member || last_.workers[rank] == formed.workers[0]) continue;
        ASSERT_EQ(formed.workers[rank], last_.workers[rank]) << "a survivor keeps its rank";
      }
    }
    for (Worker& one : workers_) {
      one.is_member = one.waits && !one.is_stopped;
      if (one.is_member) one.waits = false;
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
