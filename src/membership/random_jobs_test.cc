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
    options_.workers = random_between(1, 6);
    options_.workers_min = random_between(1, options_.workers);
    options_.shortage_max = seconds(100'000);
    options_.workers_max = random_between(options_.workers, 6);
    workers_.resize(static_cast<std::size_t>(options_.workers));
    membership_.emplace(options_);
    for (int worker = 0; worker < options_.workers; ++worker) start_worker(worker);
    for (int worker = 0; worker < options_.workers; ++worker) ask_for_rank(worker);
  }

  void run(int events) {
    for (int i = 0; i < events && !is_over_; ++i) {
      const int worker = random_between(0, slot_count() - 1);
      now_ += milliseconds(random_between(0, 800));
      switch (random_between(0, 12)) {
        case 0:
        case 1:
          end_worker(worker);
          break;
        case 2:
          stop_worker(worker);
          break;
        case 3:
          begin_to_leave(worker);
          break;
        case 4:
          open_slot(worker);
          break;
        case 5:
          if (slot_count() < 8) add_slot();
          break;
        default:
          ask_for_rank(worker);
      }
      decide();
    }
  }

  // Lets the job recover without further faults, until all workers form one group.
  void recover() {
    for (int i = 0; i < 200 && !is_over_; ++i) {
      now_ += seconds(1);
      for (int worker = 0; worker < slot_count(); ++worker) open_slot(worker);
      for (int worker = 0; worker < slot_count(); ++worker)
        if (!has_all_workers()) ask_for_rank(worker);
      decide();
    }
  }

  bool is_over() const { return is_over_; }
  bool has_all_workers() const {
    const int size = static_cast<int>(last_epoch_.workers.size());
    return size == std::min(slot_count(), options_.workers_max) &&
           std::ranges::count_if(workers_, &Worker::is_running) == size;
  }

 private:
  struct Worker {
    bool is_running = false;
    bool is_waiting = false;
    bool is_member = false;
    bool is_stopped = false;
    bool has_state = false;
    bool is_leaving = false;
    bool is_closed = false;
  };

  int random_between(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random_);
  }
  std::ptrdiff_t count_staying_workers() const {
    return std::ranges::count_if(workers_, [](const Worker& current_worker) {
      return current_worker.is_running && !current_worker.is_leaving;
    });
  }
  int slot_count() const { return static_cast<int>(workers_.size()); }
  Worker& worker(int number) { return workers_[static_cast<std::size_t>(number)]; }

  bool any_worker_has_state() const { return std::ranges::any_of(workers_, &Worker::has_state); }
  void start_worker(int number) {
    ASSERT_FALSE(worker(number).is_running);
    ASSERT_FALSE(worker(number).is_closed);
    worker(number) = {.is_running = true};
    membership_->worker_started(number, now_);
  }
  void ask_for_rank(int number) {
    Worker& current_worker = worker(number);
    if (!current_worker.is_running || current_worker.is_waiting || current_worker.is_stopped)
      return;
    current_worker.is_waiting = true;
    // Some members have received the state since the last epoch was formed.
    if (current_worker.is_member && any_worker_has_state() && random_between(0, 3) > 0)
      current_worker.has_state = true;
    if (current_worker.is_member && last_epoch_.number == 1 && random_between(0, 1) > 0)
      current_worker.has_state = true;
    any_worker_had_state_ = any_worker_had_state_ || current_worker.has_state;
    const std::int64_t left_epoch = current_worker.is_member ? last_epoch_.number : 0;
    membership_->rank_wanted(number, left_epoch, current_worker.has_state ? left_epoch : 0);
    decide();
  }
  void end_worker(int number) {
    if (!worker(number).is_running) return;
    worker(number) = {.is_closed = worker(number).is_closed};
    membership_->worker_ended(number, false, now_);
  }
  void begin_to_leave(int number) {
    worker(number).is_closed = true;
    worker(number).is_leaving = worker(number).is_running;
    membership_->slot_leaves(number);
  }
  void open_slot(int number) {
    worker(number).is_closed = false;
    if (count_staying_workers() < options_.workers_max) worker(number).is_leaving = false;
    membership_->slot_opened(number);
  }
  void add_slot() {
    workers_.emplace_back();
    membership_->add_slots(1);
  }
  void stop_worker(int number) {
    if (!worker(number).is_running) return;
    worker(number).is_stopped = true;
    membership_->worker_stopped(number, now_);
  }

  void decide() {
    if (is_over_) return;
    const auto decisions = membership_->decide(now_);
    is_over_ = !decisions.end_reason.empty();
    for (const int number : decisions.stopped_workers) {
      ASSERT_TRUE(worker(number).is_stopped);
      end_worker(number);
    }
    for (const int number : decisions.slots_to_start) start_worker(number);
    if (decisions.new_epoch) check_epoch(*decisions.new_epoch);
    for (const int number : decisions.superfluous_workers) {
      ASSERT_TRUE(worker(number).is_leaving) << "no worker has succeeded";
      ASSERT_FALSE(worker(number).is_member);
      end_worker(number);
    }
    ASSERT_LE(count_staying_workers(), options_.workers_max);
  }

  void check_epoch(const Epoch& formed_epoch) {
    ASSERT_EQ(formed_epoch.number, last_epoch_.number + 1);
    ASSERT_GE(static_cast<int>(formed_epoch.workers.size()), options_.workers_min);
    int leaving_members = 0;
    const std::set<int> members(formed_epoch.workers.begin(), formed_epoch.workers.end());
    ASSERT_EQ(members.size(), formed_epoch.workers.size());
    for (const int number : formed_epoch.workers) {
      ASSERT_TRUE(worker(number).is_running);
      ASSERT_TRUE(worker(number).is_waiting);
      ASSERT_FALSE(worker(number).is_stopped);
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& current_worker = workers_[i];
      const bool is_included = members.contains(static_cast<int>(i));
      if (current_worker.is_leaving) {
        ASSERT_TRUE(!is_included || current_worker.is_waiting);
        ASSERT_TRUE(!current_worker.is_member || current_worker.is_waiting)
            << "a member was replaced before it left its group";
        leaving_members += is_included ? 1 : 0;
        continue;
      }
      ASSERT_EQ(current_worker.is_waiting && !current_worker.is_stopped, is_included)
          << "a waiting worker was left out of the group";
      ASSERT_FALSE(current_worker.is_running && current_worker.is_member && !is_included)
          << "a running member is missing in the new group";
    }
    const int size = static_cast<int>(members.size());
    ASSERT_TRUE(leaving_members <= 1 || size == options_.workers_min)
        << "more leaving workers stay than needed";
    ASSERT_TRUE(leaving_members == 0 || worker(formed_epoch.workers[0]).is_leaving ||
                size == options_.workers_min)
        << "a leaving worker stays only if it alone has the state, or if too few others are left";
    if (last_epoch_.number > 0) {
      ASSERT_TRUE(worker(formed_epoch.workers[0]).is_member);
      ASSERT_TRUE(!any_worker_had_state_ || worker(formed_epoch.workers[0]).has_state);
      for (std::size_t rank = 1;
           rank < std::min(formed_epoch.workers.size(), last_epoch_.workers.size()); ++rank) {
        Worker& former_member = worker(last_epoch_.workers[rank]);
        if (!former_member.is_member || last_epoch_.workers[rank] == formed_epoch.workers[0])
          continue;
        if (!members.contains(last_epoch_.workers[rank])) continue;  // it leaves
        ASSERT_EQ(formed_epoch.workers[rank], last_epoch_.workers[rank])
            << "a survivor keeps its rank";
      }
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      workers_[i].is_member = members.contains(static_cast<int>(i));
      if (workers_[i].is_member) workers_[i].is_waiting = false;
    }
    last_epoch_ = formed_epoch;
  }

  std::mt19937 random_;
  Membership::Options options_;
  std::vector<Worker> workers_;
  std::optional<Membership> membership_;
  TimePoint now_ = TimePoint{} + seconds(1000);
  Epoch last_epoch_;
  bool any_worker_had_state_ = false;
  bool is_over_ = false;
};

TEST(RandomJobs, FollowTheRulesAndFormOneGroupAgain) {
  int complete_jobs = 0;
  for (unsigned seed = 1; seed <= 2000 && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RandomJob job(seed);
    job.run(25);
    job.recover();
    EXPECT_TRUE(job.is_over() || job.has_all_workers());
    complete_jobs += job.has_all_workers() ? 1 : 0;
  }
  EXPECT_GT(complete_jobs, 500) << "too few jobs survive, so the test says little";
}

}  // namespace
}  // namespace farandole
