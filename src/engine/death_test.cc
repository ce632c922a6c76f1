// Every rank is a real process. One rank is killed, exits or leaves during its collective calls.
// All other ranks must get an error that names this rank.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/processes_in_test.h"
#include "farandole/engine.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;

// Runs allreduces until one fails; returns its error.
Status reduce_until_it_fails(Engine& engine, const std::function<void(int round)>& before_round) {
  std::vector<float> values(400'000, 1.0F);
  for (int round = 0;; ++round) {
    before_round(round);
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = "gradients";
    submission.dtype = DType::kFloat32;
    submission.shape = {static_cast<std::int64_t>(values.size())};
    submission.input = submission.output = values.data();
    const auto handle = engine.submit(submission);
    if (!handle.ok()) return handle.status();
    if (!engine.wait(*handle, kTestTimeout)) return Status::stop("hangs");
    if (const Outcome outcome = engine.take(*handle); !outcome.status.ok()) return outcome.status;
  }
}

TEST(Death, EndsTheWaitOfEveryOtherRank) {
  const auto statuses = run_processes(4, [](int rank, Engine& engine) {
    return exit_code_for(reduce_until_it_fails(engine,
                                               [rank](int round) {
                                                 if (rank == 2 && round == 5) ::raise(SIGKILL);
                                               }),
                         "rank 2 (pid ");
  });
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    if (rank == 2)
      EXPECT_TRUE(WIFSIGNALED(statuses[rank]));
    else
      EXPECT_EQ(WEXITSTATUS(statuses[rank]), kPassed) << "rank " << rank;
  }
}

TEST(Death, EndsAStepInTheMiddle) {
  // The timer kills the rank at an arbitrary point, while the rank copies data.
  const auto statuses = run_processes(3, [](int rank, Engine& engine) {
    if (rank == 1) ::alarm(1);  // SIGALRM kills this process
    return exit_code_for(reduce_until_it_fails(engine, [](int) {}), "rank 1 (pid ");
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGALRM);
  EXPECT_EQ(WEXITSTATUS(statuses[0]), kPassed);
  EXPECT_EQ(WEXITSTATUS(statuses[2]), kPassed);
}

TEST(Death, AnExitWithoutShutdownIsADeathToo) {
  const auto statuses = run_processes(2, [](int rank, Engine& engine) {
    return exit_code_for(reduce_until_it_fails(engine,
                                               [rank](int round) {
                                                 if (rank == 1 && round == 3) ::_exit(7);
                                               }),
                         "rank 1 (pid ");
  });
  EXPECT_EQ(WEXITSTATUS(statuses[0]), kPassed);
  EXPECT_EQ(WEXITSTATUS(statuses[1]), 7);
}

TEST(Death, TheReasonOfALeaveIsPassedOn) {
  const auto statuses = run_processes(3, [](int rank, Engine& engine) {
    return exit_code_for(
        reduce_until_it_fails(engine,
                              [&](int round) {
                                if (rank != 0 || round != 4) return;
                                (void)engine.shutdown("uncaught ValueError: bad data");
                                ::_exit(7);
                              }),
        "has left the job (uncaught ValueError: bad data)");
  });
  EXPECT_EQ(WEXITSTATUS(statuses[0]), 7);
  EXPECT_EQ(WEXITSTATUS(statuses[1]), kPassed);
  EXPECT_EQ(WEXITSTATUS(statuses[2]), kPassed);
}

// A call of `operation`, with tensors of several windows.
Submission call_of(Operation operation, int size, std::vector<float>& input,
                   std::vector<float>& output) {
  Submission submission;
  submission.operation = operation;
  submission.name = "call";
  submission.dtype = DType::kFloat32;
  const auto rows = static_cast<std::int64_t>(input.size()) / size * size;
  if (row_of(operation).shape_rule != ShapeRule::kNone) submission.shape = {rows};
  submission.input = input.data();
  submission.output = output.data();
  return submission;
}

// Repeats the call until it fails, and returns the exit code of this rank. A thread of rank
// `victim` kills that rank at a random time.
int call_until_the_victim_dies(Engine& engine, Operation operation, int victim, unsigned seed) {
  const int size = engine.topology().size;
  std::vector<float> input(200'000, 1.0F);
  std::vector<float> output(200'000);
  std::thread killer;
  if (engine.topology().rank == victim)
    killer = kill_this_process_after(std::chrono::microseconds(std::mt19937(seed)() % 20'000));
  for (;;) {
    const auto handle = engine.submit(call_of(operation, size, input, output));
    if (handle.ok() && !engine.wait(*handle, kTestTimeout)) return 1;
    const Status status = handle.ok() ? engine.take(*handle).status : handle.status();
    if (status.ok()) continue;
    return exit_code_for(status, "rank " + std::to_string(victim) + " (pid ");
  }
}

class DeathInJobOfSize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, DeathInJobOfSize, ::testing::Values(2, 4, 8));

// The victim is the coordinator, the last rank or a rank in the middle. It dies at a random point
// of every operation.
TEST_P(DeathInJobOfSize, EndsAnyOperationInAnyRole) {
  const int size = GetParam();
  for (const OperationRow& row : kOperations) {
    if (row.operation == Operation::kJoin) continue;  // the next test kills a rank during joins
    for (const int victim : {0, size / 2, size - 1}) {
      const auto seed =
          static_cast<unsigned>(100 * size + 10 * static_cast<int>(row.operation) + victim);
      SCOPED_TRACE(std::string(row.name) + ", victim " + std::to_string(victim) + ", seed " +
                   std::to_string(seed));
      const auto statuses = run_processes(size, [&](int, Engine& engine) {
        return call_until_the_victim_dies(engine, row.operation, victim, seed);
      });
      for (int rank = 0; rank < size; ++rank) {
        const int status = statuses[static_cast<std::size_t>(rank)];
        EXPECT_TRUE(rank == victim ? WIFSIGNALED(status) : WEXITSTATUS(status) == kPassed)
            << "rank " << rank;
      }
    }
  }
}

// Members that wait in join() still take part in allreduces.
TEST(Death, EndsTheWaitOfJoinedMembers) {
  const auto statuses = run_processes(3, [](int rank, Engine& engine) {
    if (rank == 1) return call_until_the_victim_dies(engine, Operation::kAllreduce, 1, 5);
    Submission join;
    join.operation = Operation::kJoin;
    const auto handle = engine.submit(join);
    if (!handle.ok() || !engine.wait(*handle, kTestTimeout)) return 1;
    return exit_code_for(engine.take(*handle).status, "rank 1 (pid ");
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(WEXITSTATUS(statuses[0]), kPassed);
  EXPECT_EQ(WEXITSTATUS(statuses[2]), kPassed);
}

// Rank 2 dies while the ranks add and remove a group.
TEST(Death, EndsAChangeOfGroups) {
  const auto statuses = run_processes(3, [](int rank, Engine& engine) {
    std::thread killer;
    if (rank == 2) killer = kill_this_process_after(milliseconds(10));
    for (;;) {
      const auto group = engine.add_group({0, 1});
      if (!group.ok()) return exit_code_for(group.status(), "rank 2 (pid ");
      if (const Status remove_status = engine.remove_group(*group); !remove_status.ok())
        return exit_code_for(remove_status, "rank 2 (pid ");
    }
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[2]));
  EXPECT_EQ(WEXITSTATUS(statuses[0]), kPassed);
  EXPECT_EQ(WEXITSTATUS(statuses[1]), kPassed);
}

TEST(Fork, TheChildGetsAnErrorAndTheParentGoesOn) {
  const auto statuses = run_processes(2, [](int, Engine& engine) {
    std::vector<float> values(1000, 1.0F);
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.dtype = DType::kFloat32;
    submission.shape = {1000};
    submission.input = submission.output = values.data();
    const pid_t child_pid = ::fork();
    if (child_pid == 0) {
      engine.abandon_after_fork();
      const auto rejected = engine.submit(submission);
      const bool has_error =
          !rejected.ok() && rejected.status().message().find("forked child") != std::string::npos;
      (void)engine.shutdown("from the child");  // this shutdown must not affect the other ranks
      ::_exit(has_error ? kPassed : 1);
    }
    int status = 0;
    ::waitpid(child_pid, &status, 0);
    if (WEXITSTATUS(status) != kPassed) return 1;
    const auto handle = engine.submit(submission);
    const bool is_done_correctly = handle.ok() && engine.wait(*handle, kTestTimeout) &&
                                   engine.take(*handle).status.ok() && values[0] == 2.0F;
    (void)engine.shutdown("done");
    return is_done_correctly ? kPassed : 2;
  });
  EXPECT_EQ(WEXITSTATUS(statuses[0]), kPassed);
  EXPECT_EQ(WEXITSTATUS(statuses[1]), kPassed);
}

}  // namespace
}  // namespace farandole
