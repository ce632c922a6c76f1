// Fused steps: several allreduces in one transfer must give the same bits as each of them alone.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstring>
#include <random>
#include <string>

#include "engine/spied_group_in_test.h"

namespace farandole {
namespace {

using Buffers = std::vector<std::vector<std::byte>>;

constexpr int kRanks = 3;
constexpr std::size_t kBucketBytes = 1 << 20;
// With these sizes, some tensors begin at unaligned addresses in the fused buffer.
constexpr std::array<std::int64_t, 6> kCounts = {3, 1, 0, 5000, 70'001, 64};

struct ReductionKind {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1;
  double postscale = 1;
};

std::vector<ReductionKind> reduction_kinds() {
  std::vector<ReductionKind> kinds;
  for (const DTypeRow& row : kDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      if (row.dtype == DType::kBool && op == ReduceOp::kAverage) continue;
      kinds.push_back({row.dtype, op});
      kinds.push_back({row.dtype, op, 0.3, 1.7});
    }
  }
  return kinds;
}

// Random values. Their sums are rounded, but never become infinite or NaN.
Buffers inputs_of(const ReductionKind& kind, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank));
  Buffers buffers;
  for (const std::int64_t count : kCounts) {
    const auto bytes = static_cast<std::size_t>(count) * row_of(kind.dtype).bytes;
    std::vector<std::byte> buffer(bytes);
    // All bytes are below 0x40. The high byte of infinity and NaN is 0x7c or more, so none occurs.
    for (std::byte& byte : buffer) byte = static_cast<std::byte>(random() % 0x40);
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

std::vector<Submission> batch_of(const ReductionKind& kind, Buffers& inputs, Buffers& outputs) {
  std::vector<Submission> batch;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = "t" + std::to_string(i);
    submission.dtype = kind.dtype;
    submission.shape = {kCounts[i]};
    submission.input = inputs[i].data();
    submission.output = outputs[i].data();
    submission.reduce_op = kind.op;
    submission.prescale = kind.prescale;
    submission.postscale = kind.postscale;
    batch.push_back(submission);
  }
  return batch;
}

void run_batch(Engine& engine, const std::vector<Submission>& batch) {
  const auto handles = engine.submit_batch(batch, kTestTimeout);
  ASSERT_TRUE(handles.ok()) << handles.status().message();
  for (const Handle handle : *handles) ASSERT_EQ(engine.take(handle).status, Status());
}

TEST(Fusion, GivesTheResultsOfSingleSteps) {
  std::barrier<> all_ranks(kRanks);
  run_spied_job(kRanks, kBucketBytes, [&](Engine& engine, const GroupSpy& spy) {
    for (const ReductionKind& kind : reduction_kinds()) {
      Buffers inputs = inputs_of(kind, engine.topology().rank);
      Buffers unfused_results = inputs;
      Buffers fused_results = inputs;
      for (const Submission& submission : batch_of(kind, inputs, unfused_results))
        ASSERT_EQ(finish(engine, engine.submit(submission)).status, Status());
      all_ranks.arrive_and_wait();
      const std::uint32_t steps_before = spy.step_count();
      all_ranks.arrive_and_wait();
      run_batch(engine, batch_of(kind, inputs, fused_results));
      ASSERT_EQ(fused_results, unfused_results)
          << row_of(kind.dtype).name << " " << name_of(kind.op);
      all_ranks.arrive_and_wait();
      EXPECT_EQ(spy.step_count(), steps_before + 1) << "the batch was not one step";
      all_ranks.arrive_and_wait();
    }
  });
}

TEST(Fusion, WorksInPlaceWithAndWithoutContiguousTensors) {
  run_spied_job(kRanks, kBucketBytes, [&](Engine& engine, const GroupSpy&) {
    constexpr std::size_t kTensors = 8;
    constexpr std::size_t kElements = 10'000;
    const auto heap_block = engine.allocate(kTensors * kElements * sizeof(float)).value();
    auto* const values = reinterpret_cast<float*>(heap_block.get());
    const int rank = engine.topology().rank;
    for (int round = 0; round < 4; ++round) {
      std::vector<Submission> batch;
      std::vector<std::vector<float>> separate_memory(kTensors, std::vector<float>(kElements));
      for (std::size_t t = 0; t < kTensors; ++t) {
        // In each round, the tensors of one rank have separate memory, and the tensors of another
        // rank lie in reverse order in one block.
        const std::size_t position = rank == (round + 1) % kRanks ? kTensors - 1 - t : t;
        float* const memory =
            rank == round ? separate_memory[t].data() : values + position * kElements;
        std::fill_n(memory, kElements, static_cast<float>(t + 1));
        Submission submission;
        submission.operation = Operation::kAllreduce;
        submission.name = "t" + std::to_string(t);
        submission.dtype = DType::kFloat32;
        submission.shape = {static_cast<std::int64_t>(kElements)};
        submission.input = memory;
        submission.output = memory;
        batch.push_back(submission);
      }
      run_batch(engine, batch);
      for (std::size_t t = 0; t < kTensors; ++t) {
        const auto* const result = static_cast<const float*>(batch[t].output);
        ASSERT_EQ(std::count(result, result + kElements, static_cast<float>(kRanks * (t + 1))),
                  static_cast<std::ptrdiff_t>(kElements));
      }
    }
  });
}

// If the tensors do not all fit into a bucket, they take several steps. A tensor of another dtype
// takes a step of its own.
TEST(Fusion, ABucketHasALimit) {
  std::barrier<> all_ranks(2);
  run_spied_job(2, 4000, [&](Engine& engine, const GroupSpy& spy) {
    std::vector<std::vector<float>> values(6, std::vector<float>(500, 1.0F));
    std::vector<Submission> batch;
    for (std::size_t t = 0; t < values.size(); ++t)
      batch.push_back(allreduce_of(values[t], "t" + std::to_string(t)));
    batch[5].dtype = DType::kInt32;
    all_ranks.arrive_and_wait();
    const std::uint32_t steps_before = spy.step_count();
    all_ranks.arrive_and_wait();
    run_batch(engine, batch);
    for (std::size_t t = 0; t + 1 < values.size(); ++t) ASSERT_EQ(values[t].back(), 2.0F);
    all_ranks.arrive_and_wait();
    ASSERT_EQ(spy.step_count(), steps_before + 4);
  });
}

// The adasum of orthogonal vectors is their sum; the adasum of equal vectors is the vector itself.
// So the result shows whether a step mixes the two tensors.
TEST(Fusion, AdasumIsNotFused) {
  std::barrier<> all_ranks(kRanks);
  run_spied_job(kRanks, kBucketBytes, [&](Engine& engine, const GroupSpy& spy) {
    std::vector<std::vector<float>> values(2, std::vector<float>(kRanks, 1.0F));
    for (int element = 0; element < kRanks; ++element)
      values[1][static_cast<std::size_t>(element)] = element == engine.topology().rank ? 1 : 0;
    std::vector<Submission> batch = {allreduce_of(values[0], "same"),
                                     allreduce_of(values[1], "orthogonal")};
    for (Submission& submission : batch) submission.reduce_op = ReduceOp::kAdasum;
    all_ranks.arrive_and_wait();
    const std::uint32_t steps_before = spy.step_count();
    all_ranks.arrive_and_wait();
    run_batch(engine, batch);
    for (const std::vector<float>& result : values)
      EXPECT_EQ(result, std::vector<float>(kRanks, 1.0F));
    all_ranks.arrive_and_wait();
    EXPECT_EQ(spy.step_count(), steps_before + 2);
    all_ranks.arrive_and_wait();
  });
}

}  // namespace
}  // namespace farandole
