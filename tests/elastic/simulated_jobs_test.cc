// Elastic jobs over several nodes, simulated from seeds. These faults happen: workers end or stop;
// launchers are killed, also that of node 0; connections between nodes break; nodes are slow or
// frozen; hosts appear, vanish, come back at once, change their slots, or are replaced. The rules
// are checked after every step, and in the end all workers must form one group. A failed test
// prints its seed and all events.
//
// FARANDOLE_TEST_SEEDS is the number of jobs, by default 2,000. FARANDOLE_TEST_SEED is the seed of
// the first job.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "simulated_job.h"

namespace farandole {
namespace {

constexpr int kStepsMax = 12'000;

unsigned number_in(const char* variable, unsigned default_value) {
  const char* value = std::getenv(variable);
  return value != nullptr ? static_cast<unsigned>(std::stoul(value)) : default_value;
}

SimulatedJob::Kind kind_of(unsigned seed) { return static_cast<SimulatedJob::Kind>(seed % 3); }

// Returns whether all workers run at the end.
bool run_random_job(unsigned seed, SimulatedCounts& counts, bool prints_events) {
  SimulatedJob job(seed, kind_of(seed), prints_events);
  // The job ends if a worker fails before the first epoch.
  job.recover(kStepsMax);
  job.run(600);
  job.recover(kStepsMax);
  EXPECT_TRUE(job.is_over() || job.all_workers_run()) << "the workers do not form one group";
  counts.add(job.counts());
  return job.all_workers_run();
}

void print_counts(const SimulatedCounts& counts) {
  const auto print_line = [](int count, const char* text) { std::printf("%8d %s\n", count, text); };
  for (int fault = 0; fault < kFaultCount; ++fault)
    print_line(counts.faults.at(static_cast<std::size_t>(fault)),
               name_of(static_cast<Fault>(fault)));
  print_line(counts.epochs, "groups were formed");
  print_line(counts.failed_formations, "workers left a group before it was complete");
  print_line(counts.calls_failed_by_cuts, "calls failed although all reached node 0");
  print_line(counts.takeovers, "launchers of node 0 took over");
  print_line(counts.losses_while_taking_over, "launchers of node 0 were lost while they took over");
  print_line(counts.late_nodes, "nodes came too late for a new launcher of node 0");
  print_line(counts.returns_after_rejection, "late nodes came to the next launcher of node 0");
  print_line(counts.concurrent_launchers, "launchers still ran when a new launcher had their node");
  print_line(counts.node_numbers_reused, "node numbers were given to another host");
  print_line(counts.rejected_nodes, "nodes were rejected");
  print_line(counts.groups_with_frozen_members, "groups with frozen members were left");
  print_line(counts.ends_in_doubt,
             "workers had the newest state at the end, but no launcher could know it");
}

void check_counts(const SimulatedCounts& counts, int jobs) {
  for (int fault = 0; fault < kFaultCount; ++fault)
    EXPECT_GT(counts.faults.at(static_cast<std::size_t>(fault)), jobs / 20)
        << name_of(static_cast<Fault>(fault));
  EXPECT_GT(counts.epochs, 4 * jobs);
  EXPECT_GT(counts.failed_formations, jobs / 2);
  EXPECT_GT(counts.calls_failed_by_cuts, jobs / 50);
  EXPECT_GT(counts.takeovers, jobs / 10);
  EXPECT_GT(counts.losses_while_taking_over, jobs / 100);
  EXPECT_GT(counts.late_nodes, jobs / 50);
  EXPECT_GT(counts.concurrent_launchers, jobs / 50);
  EXPECT_GT(counts.node_numbers_reused, jobs / 50);
  EXPECT_GT(counts.groups_with_frozen_members, jobs / 50);
  EXPECT_EQ(counts.rejected_nodes, 0) << "node 0 would never accept these nodes";
  EXPECT_LE(counts.ends_in_doubt, jobs / 100);
}

TEST(SimulatedJobs, FollowTheRulesAndFormOneGroupAgain) {
  const unsigned first_seed = number_in("FARANDOLE_TEST_SEED", 1);
  const unsigned seeds = number_in("FARANDOLE_TEST_SEEDS", 2000);
  unsigned complete_jobs = 0;
  SimulatedCounts counts;
  for (unsigned seed = first_seed; seed < first_seed + seeds; ++seed) {
    SCOPED_TRACE(seed);
    complete_jobs += run_random_job(seed, counts, false) ? 1 : 0;
    if (::testing::Test::HasFailure()) return void(run_random_job(seed, counts, true));
  }
  print_counts(counts);
  std::printf("%8u of %u jobs survived\n", complete_jobs, seeds);
  if (seeds < 500) return;
  EXPECT_GT(complete_jobs, seeds / 3) << "too few jobs survive, so the test says little";
  check_counts(counts, static_cast<int>(seeds));
}

// A first fault, and a second one `steps` steps later, during the recovery.
struct TwoFaults {
  unsigned seed = 1;
  Fault first{};
  Fault second{};
  int steps = 0;

  // Returns how many steps the recovery has taken; −1 if a fault could not happen.
  int run(SimulatedCounts& counts, bool prints_events) const {
    SimulatedJob job(seed, kind_of(seed), prints_events);
    job.recover(kStepsMax);
    int recovery_steps = -1;
    if (inject(job, first)) {
      for (int i = 0; i < steps; ++i) job.step();
      if (inject(job, second)) recovery_steps = job.recover(kStepsMax);
    }
    EXPECT_TRUE(recovery_steps < 0 || job.is_over() || job.all_workers_run())
        << "the workers do not form one group";
    counts.add(job.counts());
    return recovery_steps;
  }
  // Returns how many steps the recovery from the first fault alone takes; −1 if this fault could
  // not happen.
  int steps_to_recover() const {
    SimulatedJob job(seed, kind_of(seed), false);
    job.recover(kStepsMax);
    return inject(job, first) ? job.recover(kStepsMax) : -1;
  }

 private:
  static bool inject(SimulatedJob& job, Fault fault) {
    const auto fault_count = [&] {
      return job.counts().faults.at(static_cast<std::size_t>(fault));
    };
    const int count_before = fault_count();
    job.inject(fault);
    return fault_count() > count_before;
  }
};

// Repeats the first fault with a second fault at each step of the recovery. The second fault
// changes from run to run. If it is impossible at that step, the next kind of fault is tried.
void run_with_second_faults(TwoFaults faults, SimulatedCounts& counts) {
  const int steps = faults.steps_to_recover();
  unsigned next_fault = faults.seed;
  int tried_faults = 0;
  while (faults.steps <= steps) {
    faults.second = static_cast<Fault>(next_fault++ % kFaultCount);
    if (!SimulatedJob::can_have(kind_of(faults.seed), faults.second)) continue;
    SCOPED_TRACE(std::to_string(faults.seed) + ": " + name_of(faults.first) + ", and after " +
                 std::to_string(faults.steps) + " steps: " + name_of(faults.second));
    const bool has_happened = faults.run(counts, false) >= 0;
    if (::testing::Test::HasFailure()) return void(faults.run(counts, true));
    if (!has_happened && ++tried_faults < kFaultCount) continue;
    ++faults.steps;
    tried_faults = 0;
  }
}

TEST(SimulatedJobs, FollowTheRulesIfASecondFaultComesAtAnyStepOfARecovery) {
  const unsigned jobs = number_in("FARANDOLE_TEST_SEEDS", 2000) / 300 + 1;
  const unsigned first_seed = number_in("FARANDOLE_TEST_SEED", 1);
  SimulatedCounts counts;
  for (unsigned seed = first_seed; seed < first_seed + jobs; ++seed) {
    for (int first_fault = 0; first_fault < kFaultCount; ++first_fault) {
      run_with_second_faults({.seed = seed, .first = static_cast<Fault>(first_fault)}, counts);
      if (::testing::Test::HasFailure()) return;
    }
  }
  print_counts(counts);
}

}  // namespace
}  // namespace farandole
