// Tests the texts of all errors that one rank can cause alone, and of errors that ranks cause by
// different calls. Each text says what was wrong, the value, which rank, and what to do. The tests
// compare whole texts, so that these change only on purpose.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <numeric>
#include <thread>

#include "base/format.h"
#include "engine/job_in_test.h"
#include "rendezvous/keys.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

struct InvalidCall {
  std::function<void(Submission&)> make_invalid;  // makes an allreduce `x` of three floats invalid
  std::string text;
};

Submission with_operation(Submission submission, Operation operation) {
  submission.operation = operation;
  return submission;
}

std::vector<InvalidCall> calls_rejected_on_the_own_rank() {
  return {
      {[](Submission& s) { s.dtype = static_cast<DType>(200); },
       "operation 0, dtype 200, device 1 and reduce op 1: one of these numbers is unknown; do "
       "all parts of Farandole have the same version?"},
      {[](Submission& s) { s.device = static_cast<DeviceType>(0); },
       "operation 0, dtype 9, device 0 and reduce op 1: one of these numbers is unknown; do "
       "all parts of Farandole have the same version?"},
      {[](Submission& s) { s.group = 7; },
       "there is no group 7; groups are given to init() on all ranks, or added later"},
      {[](Submission& s) { s.group = 1; },
       "it is not a member of group 1 (ranks 0); only members may call its operations"},
      {[](Submission& s) { s.shape = {-3}; },
       "allreduce `x` has the shape [-3], which no tensor has: each dimension must be 0 or more, "
       "and the whole tensor smaller than 2^62 bytes"},
      {[](Submission& s) { s.shape = {1L << 40, 1L << 40}; },
       "allreduce `x` has the shape [1099511627776, 1099511627776], which no tensor has: each "
       "dimension must be 0 or more, and the whole tensor smaller than 2^62 bytes"},
      {[](Submission& s) { s.shape.assign(65, 1); },
       "allreduce `x` has 65 dimensions; at most 64 are possible: reshape it"},
      {[](Submission& s) { s.name = std::string(5000, 'n'); },
       "the name `" + std::string(77, 'n') +
           "…` has 5000 bytes; at most 4096 are possible: give it a shorter one"},
      {[](Submission& s) { s.name = "farandole.groups"; },
       "allreduce `farandole.groups` has a reserved name: the names of a program must not begin "
       "with `farandole.` or contain `.noname.`"},
  };
}

// All ranks must get these errors, because the other ranks wait for the call.
std::vector<InvalidCall> calls_rejected_on_all_ranks() {
  return {
      {[](Submission& s) { s.call_error = "this is what the frontend says"; },
       "this is what the frontend says"},
      {[](Submission& s) { s.input = nullptr; },
       "allreduce `x` got a null pointer as input; give the address of its memory"},
      {[](Submission& s) { s.output = nullptr; },
       "allreduce `x` got a null pointer as output; give the address of its memory"},
      {[](Submission& s) {
         s.dtype = DType::kBool;
         s.reduce_op = ReduceOp::kAverage;
       },
       "allreduce `x`: the average of bool values is not defined; use min (true if all are true) "
       "or "
       "max (true if any is), or convert the tensor to float32 first"},
      {[](Submission& s) {
         s.dtype = DType::kInt32;
         s.reduce_op = ReduceOp::kAdasum;
       },
       "allreduce `x`: the adasum of int32 values is not defined; convert the tensor to float32 "
       "first, or use sum"},
      {[](Submission& s) {
         s.operation = Operation::kReducescatter;
         s.reduce_op = ReduceOp::kAdasum;
       },
       "reducescatter `x` got the reduce op adasum, which only allreduce has; call that, or use "
       "sum or average"},
      {[](Submission& s) { s.postscale = std::numeric_limits<double>::infinity(); },
       "allreduce `x` got the prescale factor 1 and the postscale factor inf; both must be finite"},
  };
}

std::vector<InvalidCall> calls_with_rows_rejected_on_all_ranks() {
  return {
      {[](Submission& s) {
         s = with_operation(s, Operation::kBroadcast);
         s.root_rank = 5;
       },
       "broadcast `x` has root rank 5, which is not one of the group's ranks (0, 1)"},
      {[](Submission& s) {
         s = with_operation(s, Operation::kAllgather);
         s.shape = {};
       },
       "allgather `x` got a tensor without dimensions; give it one, of length 1 (`reshape(1)`)"},
      {[](Submission& s) {
         s = with_operation(s, Operation::kReducescatter);
         s.shape = {};
       },
       "reducescatter `x` got a tensor without dimensions; give it one, of length 1 "
       "(`reshape(1)`)"},
      {[](Submission& s) { s = with_operation(s, Operation::kAlltoall); },
       "alltoall `x` got 3 rows, which 2 members cannot share equally; give it splits, the number "
       "of rows for each member"},
      {[](Submission& s) {
         s = with_operation(s, Operation::kAlltoall);
         s.splits = {1, 1, 1};
       },
       "alltoall `x` got 3 splits (1, 1, 1) in a group of 2; give one for each"},
      {[](Submission& s) {
         s = with_operation(s, Operation::kAlltoall);
         s.splits = {2, 2};
       },
       "alltoall `x` got the splits (2, 2) for 3 rows; each must be 0 or more, and their sum at "
       "most the number of rows"},
      {[](Submission& s) {
         s = with_operation(s, Operation::kAlltoall);
         s.splits = {-1, 2};
       },
       "alltoall `x` got the splits (-1, 2) for 3 rows; each must be 0 or more, and their sum at "
       "most the number of rows"},
  };
}

TEST(ErrorTexts, DescribeCallsRejectedOnTheOwnRank) {
  run_job(2, {{0}}, [](Engine& engine) {
    std::vector<float> values(3, 1.0F);
    if (engine.topology().rank == 1) {
      for (const InvalidCall& invalid_call : calls_rejected_on_the_own_rank()) {
        Submission submission = allreduce_of(values, "x");
        invalid_call.make_invalid(submission);
        EXPECT_EQ(engine.submit(submission).status(),
                  Status::fix_call("rank 1: " + invalid_call.text));
      }
    }
    EXPECT_EQ(barrier(engine), Status());
  });
}

TEST(ErrorTexts, DescribeCallsRejectedOnAllRanks) {
  run_job(2, {}, [](Engine& engine) {
    std::vector<float> values(3, 1.0F);
    std::vector<InvalidCall> calls = calls_rejected_on_all_ranks();
    for (const InvalidCall& call : calls_with_rows_rejected_on_all_ranks()) calls.push_back(call);
    for (const InvalidCall& invalid_call : calls) {
      Submission submission = allreduce_of(values, "x");
      if (engine.topology().rank == 1) invalid_call.make_invalid(submission);
      EXPECT_EQ(finish(engine, engine.submit(submission)).status,
                Status::fix_call("rank 1: " + invalid_call.text));
      submission = allreduce_of(values, "x");
      invalid_call.make_invalid(submission);
      EXPECT_EQ(finish(engine, engine.submit(submission)).status,
                Status::fix_call("ranks 0, 1: " + invalid_call.text));
    }
    EXPECT_EQ(values, std::vector<float>(3, 1.0F));
    EXPECT_EQ(barrier(engine), Status());
  });
}

// This test calls only the check, because a group of 256 ranks is too large for a test.
TEST(ErrorTexts, DescribeAdasumInALargeGroup) {
  std::vector<float> values(3, 1.0F);
  Submission submission = allreduce_of(values, "x");
  submission.reduce_op = ReduceOp::kAdasum;
  std::vector<int> ranks(255);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(call_error_of(submission, ranks, 7), Status());
  ranks.push_back(255);
  EXPECT_EQ(call_error_of(submission, ranks, 7),
            Status::fix_call("allreduce `x` got the reduce op adasum in a group of 256; it is "
                             "possible among 255 members at most: use sum or average, or smaller "
                             "groups"));
}

TEST(ErrorTexts, DescribeWrongHandles) {
  run_job(2, {}, [](Engine& engine) {
    EXPECT_EQ(engine.take(12345).status,
              Status::fix_call("the handle 12345 is unknown: its result was taken already, or this "
                               "engine did not return it; take each result once"));
    std::vector<float> values(3, 1.0F);
    const auto handle = engine.submit(allreduce_of(values, "x"));
    ASSERT_TRUE(handle.ok());
    if (engine.topology().rank == 1) {
      EXPECT_EQ(engine.submit(allreduce_of(values, "x")).status(),
                Status::fix_call(
                    "rank 1: `x` is in use by an earlier call whose result was not waited for: "
                    "keep the handle of that call and wait for it first, or give this call another "
                    "name (the name of a call whose handle was dropped stays in use)"));
    }
    EXPECT_EQ(finish(engine, handle).status, Status());
    // Rank 0 must not leave before rank 1 has seen its rejection.
    EXPECT_EQ(finish(engine, engine.submit(allreduce_of(values, "last"))).status, Status());
    (void)engine.shutdown("over");
    EXPECT_EQ(engine.submit(allreduce_of(values)).status(),
              Status::fix_call("rank " + std::to_string(engine.topology().rank) +
                               ": the engine is shut down; call init() before this operation"));
  });
}

TEST(ErrorTexts, DescribeImpossibleTopologies) {
  auto options = options_of(2, 2);
  EXPECT_EQ(Engine::create(options).status(),
            Status::fix_call("rank 2 is outside a job of size 2; FARANDOLE_RANK and "
                             "FARANDOLE_SIZE are set by `farandole run`"));
  options = options_of(0, 2);
  options.topology.local_rank = 5;
  EXPECT_EQ(Engine::create(options).status(),
            Status::fix_call("local rank 5 is outside its host's share of 2 ranks; "
                             "FARANDOLE_LOCAL_RANK and FARANDOLE_LOCAL_SIZE are set by `farandole "
                             "run`"));
  EXPECT_EQ(Engine::create(options_of(0, 2)).status(),
            Status::fix_call("a job of size 2 needs a launcher: start it with `farandole run -n 2 "
                             "…` (there is no FARANDOLE_RENDEZVOUS_DESCRIPTOR here)"));
  options = options_of(0, 1);
  options.flight_record_descriptor = 0;
  const std::string text = Engine::create(options).status().message();
  EXPECT_TRUE(text.starts_with(
      "FARANDOLE_FLIGHT_RECORD_DESCRIPTOR is 0, which is not the launcher's memory ("))
      << text;
  EXPECT_TRUE(
      text.ends_with("); only `farandole run` sets it, and a program that a worker starts "
                     "must not join its job"))
      << text;
}

// Starts rank 0 with `first` and rank 1 with `second`, and expects the error text of each.
void expect_rejections(EngineOptions options_of_rank_0, EngineOptions options_of_rank_1,
                       const std::string& text_of_rank_0, const std::string& text_of_rank_1) {
  run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto engine = assemble(rank == 0 ? options_of_rank_0 : options_of_rank_1, store);
    EXPECT_EQ(engine.status().message(), rank == 0 ? text_of_rank_0 : text_of_rank_1);
  });
}

TEST(ErrorTexts, DescribeFormationsWhoseMembersDiffer) {
  auto other_options = options_of(1, 2);
  other_options.bucket_bytes = 7;
  expect_rejections(
      options_of(0, 2), other_options,
      "rank 0 has FARANDOLE_BUCKET_BYTES=0, rank 1 has 7; it must be the same in all workers",
      "rank 1 has FARANDOLE_BUCKET_BYTES=7, rank 0 has 0; it must be the same in all workers");
  other_options = options_of(1, 2);
  other_options.check_parameters = 7;
  expect_rejections(
      options_of(0, 2), other_options,
      "rank 0 has FARANDOLE_CHECK_PARAMETERS=5000, rank 1 has 7; it must be the same in all "
      "workers",
      "rank 1 has FARANDOLE_CHECK_PARAMETERS=7, rank 0 has 5000; it must be the same in all "
      "workers");
  other_options = options_of(1, 2, {{0}});
  expect_rejections(options_of(0, 2), other_options,
                    "rank 0 calls init with the groups [], rank 1 with [[0]]; all ranks must give "
                    "the same groups in the same order",
                    "rank 1 calls init with the groups [[0]], rank 0 with []; all ranks must give "
                    "the same groups in the same order");
  other_options = options_of(1, 3);
  expect_rejections(
      options_of(0, 2), other_options,
      "rank 0 was started with size 2, rank 1 with size 3; all workers must get the same size, in "
      "WORLD_SIZE or the variable of the launcher that you use",
      "rank 1 was started with size 3, rank 0 with size 2; all workers must get the same size, in "
      "WORLD_SIZE or the variable of the launcher that you use");
  const std::string duplicate_error =
      "the group [0] is given twice (the world counts as given); name each group once";
  expect_rejections(options_of(0, 2), options_of(1, 2, {{0}, {0}}),
                    "rank 1 could not start: " + duplicate_error, duplicate_error);
  const std::string order_error =
      "the group [1, 0] is not an ascending list of ranks of this job (0 to 1); name each member "
      "once, the smallest first";
  expect_rejections(options_of(0, 2, {{1, 0}}), options_of(1, 2), order_error,
                    "rank 0 could not start: " + order_error);
  std::vector<std::vector<int>> many_groups;
  for (int first = 0; first < 32; ++first) many_groups.push_back({first, 40});
  auto options_with_many_groups = options_of(0, 41, many_groups);
  const auto store = std::make_shared<MemoryStore>();
  EXPECT_EQ(assemble(options_with_many_groups, store).status(),
            Status::fix_call("32 groups are too many; at most 31 are possible"));
}

// The Store says that the parent process of this test has rank 1, too.
TEST(ErrorTexts, DescribeTwoProcessesWithTheSameRank) {
  const auto store = std::make_shared<MemoryStore>();
  ASSERT_EQ(store->set(keys::process(1), record_of_process(::getppid(), *store)), Status());
  const std::string text = format_text(
      "the processes {} and {} both have rank 1 of 2; give each worker its own rank, in "
      "RANK or the variable of the launcher that you use",
      ::getppid(), ::getpid());
  std::thread other_rank([&] {
    EXPECT_EQ(assemble(options_of(0, 2), store).status(),
              Status::rebuild_group("rank 1 could not start: " + text));
  });
  EXPECT_EQ(assemble(options_of(1, 2), store).status(), Status::fix_call(text));
  other_rank.join();
}

TEST(ErrorTexts, DescribeTensorsOnDifferentDevices) {
  run_job(3, {}, [](Engine& engine) {
    std::vector<float> values(3, 1.0F);
    auto call = allreduce_of(values, "grad");
    if (engine.topology().rank == 1) call.device = DeviceType::kCuda;
    EXPECT_EQ(finish(engine, engine.submit(call, kTestTimeout)).status,
              Status::fix_call(
                  "allreduce `grad` was submitted differently on different ranks: the device "
                  "differs; rank 1 differs from the others\n"
                  "               dtype     device   shape\n"
                  "  ranks 0, 2   float32   cpu      [3]\n"
                  "  rank 1       float32   cuda     [3]\n"
                  "Submit the same on every rank, or give different tensors different names"));
    // all ranks name the same device; the memory is always host memory
    call.device = DeviceType::kCuda;
    EXPECT_EQ(finish(engine, engine.submit(call, kTestTimeout)).status, Status());
    EXPECT_EQ(values[0], 3.0F);
  });
}

TEST(ErrorTexts, DescribeAMissingRank) {
  auto options = options_of(0, 3);
  options.start_timeout = std::chrono::milliseconds(1000);
  EXPECT_EQ(assemble(options, std::make_shared<MemoryStore>()).status(),
            Status::rebuild_group(
                "rank 0 waited 1 s for ranks 1, 2, in vain: do all workers call init() equally "
                "often? A slow start can be given more time with FARANDOLE_START_TIMEOUT "
                "(seconds)"));
}

TEST(ErrorTexts, DescribeCallsAfterALeave) {
  run_job(3, {}, [](Engine& engine) {
    const int rank = engine.topology().rank;
    std::vector<float> values(3, 1.0F);
    if (rank == 1) return (void)engine.shutdown("uncaught ValueError: bad data");
    const std::string pid = std::to_string(::getpid());
    EXPECT_EQ(allreduce(engine, values, "grad"),
              Status::rebuild_group("allreduce `grad` cannot finish: rank 1 (pid " + pid +
                                    ") has left the job (uncaught ValueError: bad data); all ranks "
                                    "must make the same calls before any of them leaves"));
    EXPECT_EQ(allreduce(engine, values, "next"),
              Status::rebuild_group("rank 1 (pid " + pid +
                                    ") has left the job (uncaught ValueError: bad data); all ranks "
                                    "must make the same calls before any of them leaves"));
  });
}

}  // namespace
}  // namespace farandole
