// Groups are added and removed while the job runs. Ranks are threads.
#include "engine/groups.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "engine/job_in_test.h"
#include "formation/group_list.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;

Status error_of(const Result<GroupId>& group) { return group.status(); }

TEST(Groups, AGroupIsAddedUsedRemovedAndAddedAgain) {
  run_job(3, {{0, 1}}, [](Engine& engine) {
    const int rank = engine.topology().rank;
    for (GroupId expected_group = 2; expected_group < 50; ++expected_group) {
      const auto group = engine.add_group({0, 2});
      ASSERT_EQ(error_of(group), Status());
      ASSERT_EQ(*group, expected_group) << "numbers are not used twice";
      ASSERT_EQ(engine.ranks_of(*group), (std::vector<int>{0, 2}));
      if (rank != 1) {
        std::vector<float> values(70'000, static_cast<float>(rank + 1));
        ASSERT_EQ(allreduce(engine, values, "x", *group), Status());
        ASSERT_EQ(values.back(), 4.0F);
      }
      ASSERT_EQ(engine.remove_group(*group), Status());
      ASSERT_TRUE(engine.ranks_of(*group).empty());
      std::vector<float> values(3, 1.0F);
      EXPECT_EQ(allreduce(engine, values, "x", *group),
                Status::fix_call("rank " + std::to_string(rank) + ": there is no group " +
                                 std::to_string(*group) +
                                 "; groups are given to init() on all ranks, or added later"));
    }
  });
}

// How many groups the test adds and removes. FARANDOLE_TEST_GROUPS=100000 makes a long run.
int changes_of_groups() {
  const char* const groups = std::getenv("FARANDOLE_TEST_GROUPS");
  return groups == nullptr ? 2000 : std::max(std::atoi(groups), 2000);
}

// The resources of this process. All ranks are threads in it.
struct ProcessResources {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t mappings = 0;
  std::int64_t resident_bytes = 0;
};

ProcessResources resources_in_use() {
  ProcessResources resources;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  resources.descriptors = std::distance(begin(descriptors), end(descriptors));
  std::ifstream maps("/proc/self/maps");
  resources.mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  resources.resident_bytes = pages * ::sysconf(_SC_PAGESIZE);
  return resources;
}

// Whether freed memory is reused. The address sanitizer does not reuse it, and finds leaks itself.
#if __has_feature(address_sanitizer)
constexpr bool kMemoryIsReused = false;
#else
constexpr bool kMemoryIsReused = true;
#endif

// Adds and removes many groups and runs a call in every twentieth group. Descriptors, mappings and
// memory must not grow.
TEST(Groups, LeaveNoResourcesBehind) {
  constexpr int kWarmUp = 1000;
  const int changes = changes_of_groups();
  ProcessResources resources_before;
  ProcessResources resources_after;
  run_job(2, {}, [&](Engine& engine) {
    const auto measure_resources = [&](ProcessResources& target) {
      ASSERT_EQ(barrier(engine), Status());
      if (engine.topology().rank == 0) target = resources_in_use();
      ASSERT_EQ(barrier(engine), Status());
    };
    for (int change = 0; change < changes; ++change) {
      if (change == kWarmUp) measure_resources(resources_before);
      const auto group = engine.add_group({change % 2});
      ASSERT_EQ(error_of(group), Status());
      std::vector<float> values(3, 1.0F);
      if (change % 20 == 0 && engine.topology().rank == 0) {
        ASSERT_EQ(allreduce(engine, values, "x", *group), Status());
      }
      ASSERT_EQ(engine.remove_group(*group), Status());
    }
    measure_resources(resources_after);
  });
  std::printf("%d groups: %td descriptors, %td mappings, %.1f MiB; after %d: %td, %td, %.1f MiB\n",
              changes, resources_after.descriptors, resources_after.mappings,
              static_cast<double>(resources_after.resident_bytes) / (1 << 20), kWarmUp,
              resources_before.descriptors, resources_before.mappings,
              static_cast<double>(resources_before.resident_bytes) / (1 << 20));
  EXPECT_EQ(resources_after.descriptors, resources_before.descriptors);
  EXPECT_LE(resources_after.mappings, resources_before.mappings + 20)
      << "a few mappings may be the allocator's";
  if (kMemoryIsReused) {
    EXPECT_LE(resources_after.resident_bytes, resources_before.resident_bytes + (4 << 20));
  }
}

// One thread takes the progress lock to change groups. No submission of another thread may be lost.
TEST(Groups, CallsOfOneThreadGoOnWhileAnotherChangesGroups) {
  run_job(2, {}, [](Engine& engine) {
    std::thread calling_thread([&engine] {
      for (int i = 0; i < 3000; ++i) {
        std::vector<float> values(3, 1.0F);
        ASSERT_EQ(allreduce(engine, values, "x"), Status());
        ASSERT_EQ(values.back(), 2.0F);
      }
    });
    for (int i = 0; i < 100; ++i) {
      const auto group = engine.add_group({0});
      ASSERT_EQ(error_of(group), Status());
      ASSERT_EQ(engine.remove_group(*group), Status());
    }
    calling_thread.join();
  });
}

TEST(Groups, DifferentRequestsAreRejectedOnAllRanks) {
  run_job(2, {}, [](Engine& engine) {
    const bool is_rank_0 = engine.topology().rank == 0;
    EXPECT_EQ(error_of(engine.add_group(is_rank_0 ? std::vector{0} : std::vector{1})),
              Status::fix_call("rank 0 adds the group [0], rank 1 adds the group [1]; all ranks "
                               "must add and remove the same groups in the same order"));
    const auto group = engine.add_group({0});
    ASSERT_EQ(error_of(group), Status());
    const Status status = is_rank_0 ? error_of(engine.add_group({1})) : engine.remove_group(*group);
    EXPECT_EQ(status,
              Status::fix_call("rank 0 adds the group [1], rank 1 removes group 1; all ranks must "
                               "add and remove the same groups in the same order"));
    EXPECT_EQ(engine.ranks_of(*group), std::vector{0});
    EXPECT_EQ(barrier(engine), Status());
  });
}

TEST(Groups, AreNotChangedWhileARankHasJoined) {
  run_job(2, {}, [](Engine& engine) {
    Submission join;
    join.operation = Operation::kJoin;
    if (engine.topology().rank == 0)
      EXPECT_EQ(error_of(engine.add_group({0})),
                Status::fix_call("rank 1 waits in join(): add and remove groups when all ranks "
                                 "have joined"));
    ASSERT_EQ(finish(engine, engine.submit(join)).status, Status());
    EXPECT_EQ(error_of(engine.add_group({0})), Status());
  });
}

TEST(Groups, InvalidRequestsAreRejected) {
  run_job(2, {}, [](Engine& engine) {
    EXPECT_EQ(error_of(engine.add_group({1, 0})),
              Status::fix_call(
                  "the group [1, 0] is not an ascending list of ranks of this job (0 to 1); name "
                  "each member once, the smallest first"));
    EXPECT_EQ(error_of(engine.add_group({0, 9})),
              Status::fix_call("the group [0, 9] names rank 9, which is not one of this job (0 to "
                               "1)"));
    EXPECT_EQ(error_of(engine.add_group({0, 1})),
              Status::fix_call("the group [0, 1] exists already, as number 0"));
    EXPECT_EQ(engine.remove_group(0),
              Status::fix_call("group 0 is the world and cannot be removed"));
    EXPECT_EQ(
        engine.remove_group(7),
        Status::fix_call("there is no group 7 to remove: it was never added, or removed before"));
    EXPECT_EQ(barrier(engine), Status());
  });
}

TEST(Groups, TheNumberOfGroupsIsLimited) {
  run_job(6, {}, [](Engine& engine) {
    std::vector<GroupId> added_groups;
    Status status;
    for (int bits = 1; status.ok(); ++bits) {
      std::vector<int> ranks;
      for (int rank = 0; rank < 6; ++rank)
        if ((bits >> rank & 1) != 0) ranks.push_back(rank);
      const auto group = engine.add_group(ranks);
      status = group.status();
      if (group.ok()) added_groups.push_back(*group);
    }
    EXPECT_EQ(added_groups.size(), kGroupsMax - 1);
    EXPECT_EQ(status, Status::fix_call("there are 32 groups already, which is the most that is "
                                       "possible; remove one first"));
    for (const GroupId group : added_groups) EXPECT_EQ(engine.remove_group(group), Status());
    EXPECT_EQ(error_of(engine.add_group({0, 1})), Status());
  });
}

Status untaken_results_error(int rank, int calls) {
  return Status::fix_call("rank " + std::to_string(rank) +
                          ": group 1 has calls that were not waited "
                          "for (" +
                          std::to_string(calls) +
                          "): keep the handle of each call and wait for it before "
                          "the group is removed (a group cannot be removed after the handle of one "
                          "of its calls was dropped)");
}

// A finished call also prevents the removal until its result is taken, because the time at which a
// call finishes differs between the ranks.
TEST(Groups, AGroupWithUntakenResultsIsNotRemoved) {
  run_job(3, {{0, 1}}, [](Engine& engine) {
    std::vector<float> values(3, 1.0F);
    const bool is_member = engine.topology().rank != 2;
    Result<Handle> pending_handle = Status::retry("none");
    if (engine.topology().rank == 1)
      pending_handle = engine.submit(allreduce_of(values, "half", 1));
    EXPECT_EQ(engine.remove_group(1), untaken_results_error(1, 1));
    if (engine.topology().rank == 0)
      pending_handle = engine.submit(allreduce_of(values, "half", 1));
    if (is_member) {
      EXPECT_TRUE(engine.wait(*pending_handle, kTestTimeout));
    }
    EXPECT_EQ(engine.remove_group(1), untaken_results_error(0, 1));
    if (is_member) {
      EXPECT_EQ(engine.take(*pending_handle).status, Status());
    }
    EXPECT_EQ(engine.remove_group(1), Status());
  });
}

TEST(Groups, AGroupWithDroppedCallsIsNotRemoved) {
  run_job(3, {{0, 1}}, [](Engine& engine) {
    std::vector<std::vector<float>> values(2, std::vector<float>(3, 1.0F));
    if (engine.topology().rank == 2) values.clear();  // this rank is not a member
    for (auto& tensor : values) {
      const auto handle = engine.submit(allreduce_of(tensor, "", 1));
      ASSERT_TRUE(handle.ok());
      engine.drop(*handle);
      EXPECT_TRUE(engine.wait(*handle, kTestTimeout));  // the engine no longer uses the memory
    }
    EXPECT_EQ(engine.remove_group(1), untaken_results_error(0, 2));
  });
}

TEST(Groups, ALeaveEndsTheChangeOnAllOtherRanks) {
  run_job(3, {}, [](Engine& engine) {
    if (engine.topology().rank == 1) return (void)engine.shutdown("uncaught ValueError: no data");
    const Status status = error_of(engine.add_group({0, 1}));
    EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
    EXPECT_NE(status.message().find("rank 1"), std::string::npos);
    EXPECT_NE(status.message().find("uncaught ValueError: no data"), std::string::npos);
  });
}

TEST(Groups, AnInterruptionEndsTheWait) {
  run_ranks(2, [](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2);
    std::atomic<bool> interrupted = false;
    options.interrupted = [&] { return interrupted.load(); };
    const auto engine = value_or_abort(assemble(options, store));
    if (rank == 1) {
      EXPECT_EQ(barrier(*engine), Status());
      return;
    }
    interrupted = true;
    EXPECT_EQ(error_of(engine->add_group({0})),
              Status::retry("interrupted while the groups were being changed"));
    interrupted = false;
    EXPECT_EQ(error_of(engine->add_group({0})),
              Status::rebuild_group("a change of groups was interrupted on rank 0, and the others "
                                    "still wait for it: shut down, and start the job again"));
    EXPECT_EQ(barrier(*engine), Status());
  });
}

// A rank may leave immediately after it has added the group. Then the calls of the other member in
// the group fail, and the error names the rank that left.
TEST(Groups, ALeaveRightAfterTheChangeEndsCallsInTheNewGroup) {
  for (int round = 0; round < 30; ++round) {
    run_job(3, {}, [](Engine& engine) {
      const auto group = engine.add_group({0, 1});
      if (engine.topology().rank != 0) return (void)engine.shutdown("enough");
      if (!group.ok()) return;  // the leave was handled before the end of the change
      std::vector<float> values(10, 1.0F);
      const Status status = allreduce(engine, values, "x", *group);
      EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    });
  }
}

// Rank 1 leaves, so the removal fails and the group ends. Then no call in the group may wait
// forever.
TEST(Groups, AGroupWhoseRemovalFailsAfterALeaveIsOver) {
  run_job(3, {{0, 1}}, [](Engine& engine) {
    if (engine.topology().rank == 1) return (void)engine.shutdown("enough");
    EXPECT_EQ(engine.remove_group(1).code(), StatusCode::kRebuildGroup);
    if (engine.topology().rank != 0) return;
    std::vector<float> values(10, 1.0F);
    EXPECT_EQ(allreduce(engine, values, "x", 1).code(), StatusCode::kRebuildGroup);
  });
}

TEST(Groups, CallsDuringARemovalCompleteOrAreRejected) {
  run_job(2, {}, [](Engine& engine) {
    for (int round = 0; round < 30; ++round) {
      const auto group = engine.add_group({engine.topology().size - 2});
      ASSERT_EQ(error_of(group), Status());
      std::atomic<bool> is_removed = false;
      std::thread calling_thread;
      if (engine.topology().rank == 0)
        calling_thread = std::thread([&] {
          while (!is_removed) {
            std::vector<float> values(10, 1.0F);
            const Status status = allreduce(engine, values, "x", *group);
            ASSERT_TRUE(status.ok() || status.code() == StatusCode::kFixCall) << status.message();
          }
        });
      while (!engine.remove_group(*group).ok()) std::this_thread::yield();
      is_removed = true;
      if (calling_thread.joinable()) calling_thread.join();
    }
  });
}

// Rank 1 delays its last exchange of the removal. During the delay, rank 0, which has closed the
// group, submits a call. This call must be rejected.
TEST(Groups, ACallInTheMiddleOfARemovalIsRejected) {
  std::atomic<bool> is_delayed = false;
  std::atomic<bool> was_rejected = false;
  run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2, {{0}});
    Engine* own_engine = nullptr;  // set during the removal
    options.interrupted = [&] {
      if (own_engine == nullptr) return false;
      if (rank == 1) {
        is_delayed = true;
        const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
        while (!was_rejected && std::chrono::steady_clock::now() < deadline)
          std::this_thread::yield();
        return false;
      }
      std::vector<float> values(10, 1.0F);
      const Status status = allreduce(*own_engine, values, "x", 1);
      if (status.ok()) return false;  // the group is not closed yet
      EXPECT_EQ(status, Status::fix_call("rank 0: group 1 is being removed; no more calls can be "
                                         "made in it"));
      was_rejected = true;
      return false;
    };
    const auto engine = value_or_abort(assemble(options, store));
    while (rank == 0 && !is_delayed) std::this_thread::yield();
    own_engine = engine.get();
    EXPECT_EQ(engine->remove_group(1), Status());
    own_engine = nullptr;
    EXPECT_TRUE(was_rejected);
    EXPECT_EQ(barrier(*engine), Status());
  });
}

// A thread is interrupted while it waits for the change of another thread. Its own change has not
// begun, so no other rank waits for it, and the change of the other thread continues.
TEST(Groups, AnInterruptionEndsTheWaitForAnotherThread) {
  std::atomic<bool> first_thread_waits = false;
  std::atomic<bool> second_thread_has_tried = false;
  run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 2);
    std::atomic<bool> interrupt_requested = false;
    options.interrupted = [&, own_thread = std::this_thread::get_id()] {
      if (interrupt_requested && std::this_thread::get_id() != own_thread)
        first_thread_waits = true;
      return interrupt_requested && std::this_thread::get_id() == own_thread;
    };
    const auto engine = value_or_abort(assemble(options, store));
    if (rank == 1) {
      while (!second_thread_has_tried) std::this_thread::yield();
      EXPECT_EQ(error_of(engine->add_group({0})), Status());
      return;
    }
    interrupt_requested = true;
    std::thread first_thread([&] { EXPECT_EQ(error_of(engine->add_group({0})), Status()); });
    while (!first_thread_waits) std::this_thread::yield();
    EXPECT_EQ(error_of(engine->add_group({1})),
              Status::retry("interrupted while another thread changes the groups"));
    second_thread_has_tried = true;
    first_thread.join();
  });
}

TEST(Groups, AGroupOfAnElasticJobThatLacksRanksKeepsItsNumber) {
  run_ranks(3, [](int rank, const std::shared_ptr<LocalStore>& store) {
    auto options = options_of(rank, 3, {{1, 4, 5}, {0, 1, 2}, {0, 2}});
    options.elastic_worker = rank;
    const auto engine = value_or_abort(assemble(options, store));
    EXPECT_EQ(engine->ranks_of(1), (std::vector{1, 4, 5}));
    EXPECT_EQ(engine->ranks_of(2), (std::vector{0, 1, 2})) << "the world does not count as given";
    std::vector<float> values(3, static_cast<float>(rank));
    EXPECT_EQ(allreduce(*engine, values, "x", 1),
              Status::fix_call("rank " + std::to_string(rank) +
                               ": the group [1, 4, 5] cannot be used now: it lacks ranks 4, 5, "
                               "because the job has 3 ranks now; it can be used again when the job "
                               "has 6 (--min-workers 6 lets the job wait for them)"));
    EXPECT_EQ(engine->remove_group(1).code(), StatusCode::kFixCall);
    EXPECT_EQ(allreduce(*engine, values, "x", 2), Status());
    EXPECT_EQ(values[0], 3.0F);
    if (rank != 1) {
      EXPECT_EQ(allreduce(*engine, values, "x", 3), Status());
    }
    EXPECT_EQ(values[0], rank == 1 ? 3.0F : 6.0F);
    // The job must have all ranks of a group that is added later. Such a group may equal the world.
    EXPECT_EQ(error_of(engine->add_group({1, 4, 5})).code(), StatusCode::kFixCall);
    EXPECT_EQ(error_of(engine->add_group({0, 2})).code(), StatusCode::kFixCall);
    EXPECT_EQ(engine->remove_group(2), Status());
    EXPECT_EQ(engine->add_group({0, 1, 2}).value(), 4U);
  });
}

// Groups are added while another thread of the same rank waits for a call that completes only
// later.
TEST(Groups, AWaitingThreadDoesNotDelayAChange) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> late_values(1000, 1.0F);
    const auto pending = engine.topology().rank == 0
                             ? engine.submit(allreduce_of(late_values, "late"))
                             : Result<Handle>(Status::retry("not yet"));
    std::thread waiter;
    if (pending.ok())
      waiter = std::thread([&] { EXPECT_TRUE(engine.wait(*pending, kTestTimeout)); });
    for (int round = 0; round < 20; ++round) {
      const auto group = engine.add_group({0});
      ASSERT_EQ(error_of(group), Status());
      ASSERT_EQ(engine.remove_group(*group), Status());
    }
    if (engine.topology().rank == 1) {
      EXPECT_EQ(allreduce(engine, late_values, "late"), Status());
    }
    if (waiter.joinable()) waiter.join();
    if (pending.ok()) {
      EXPECT_EQ(engine.take(*pending).status, Status());
    }
    EXPECT_EQ(late_values[0], 2.0F);
  });
}

}  // namespace
}  // namespace farandole
