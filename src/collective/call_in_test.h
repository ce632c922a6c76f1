// For tests: one collective call of a whole group. PreparedCall has each member's input and the
// expected result, computed in the simplest way. MemberCallInTest is one member's part of the call,
// with guard bytes around its memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collective/group_in_test.h"
#include "device/cpu/half.h"
#include "device/cpu/reduce.h"

namespace farandole {

// Random numbers between −2 and 2 for floating-point types, and random bytes for other types.
// Random bytes of a floating-point type could be NaNs, and the bits of a computed NaN may differ
// between vector code and scalar code.
inline Buffer random_elements(DType dtype, std::int64_t count, unsigned seed) {
  const auto elements = static_cast<std::size_t>(count);
  Buffer buffer = random_bytes(elements * row_of(dtype).bytes, seed);
  const auto convert = [&]<class Format>(auto from_float) {
    for (std::size_t index = 0; index < elements; ++index) {
      const auto random_byte = std::to_integer<int>(buffer[index * sizeof(Format)]);
      const auto value =
          static_cast<float>(random_byte - 128 + static_cast<int>(index % 100)) / 114;
      const Format element = from_float(value);
      std::memcpy(&buffer[index * sizeof(Format)], &element, sizeof(element));
    }
  };
  if (dtype == DType::kFloat16)
    convert.operator()<Float16>([](float value) { return to_float16(value); });
  if (dtype == DType::kBFloat16)
    convert.operator()<BFloat16>([](float value) { return to_bfloat16(value); });
  if (dtype == DType::kFloat32) convert.operator()<float>([](float value) { return value; });
  if (dtype == DType::kFloat64) convert.operator()<double>([](float value) { return value / 3.0; });
  return buffer;
}

// The arguments of the call. The operation decides which fields are used.
struct CallInTest {
  Operation operation = Operation::kBarrier;
  Reduction reduction = {};  // every operation uses the dtype; PreparedCall sets the divisor
  int root = 0;
  std::vector<std::int64_t> rows = {};  // of each member; all equal if the operation requires it
  std::int64_t row_elements = 1;
  std::vector<std::vector<std::int64_t>> splits = {};  // splits[from][to], in rows
  std::vector<bool> joined = {};                       // if empty, no member has joined
  // For each member: whether its memory is in a heap, so that the others can see it. If this is
  // empty, no memory is in a heap.
  std::vector<bool> in_heap = {};
  // The host parts of the group. Each host first computes its own sum. If this list is empty, all
  // members are on one host.
  std::vector<std::vector<int>> hosts = {};
  bool hierarchical_adasum = false;  // see Knobs; used only if `hosts` is not empty
  bool in_place = false;             // ignored if the operation has no in-place form
  unsigned seed = 0;

  int members() const { return static_cast<int>(rows.size()); }
  std::int64_t row_bytes() const {
    return row_elements * static_cast<std::int64_t>(row_of(reduction.dtype).bytes);
  }
  bool has_joined(std::size_t member) const { return !joined.empty() && joined[member]; }
  bool is_in_heap(std::size_t member) const { return !in_heap.empty() && in_heap[member]; }
  std::string text() const {
    return std::string(row_of(operation).name) + " of " +
           std::string(row_of(reduction.dtype).name) + ", " + std::string(name_of(reduction.op)) +
           ", seed " + std::to_string(seed) + ", " + std::to_string(rows[0]) + " rows of " +
           std::to_string(row_elements) + " elements" + (in_place ? ", in place" : "") +
           (joined.empty() ? "" : ", some have joined") + (in_heap.empty() ? "" : ", heap") +
           (hosts.empty() ? "" : ", " + std::to_string(hosts.size()) + " hosts");
  }
};

// A call with the inputs and expected results of all members.
struct PreparedCall {
  explicit PreparedCall(CallInTest arguments) : call(std::move(arguments)) {
    call.reduction.divisor = call.members();
    const auto members = static_cast<std::size_t>(call.members());
    for (std::size_t member = 0; member < members; ++member) {
      const std::int64_t rows = call.has_joined(member) ? 0 : call.rows[member];
      inputs.push_back(random_elements(call.reduction.dtype, rows * call.row_elements,
                                       call.seed * 64 + static_cast<unsigned>(member)));
    }
    if (row_of(call.operation).reduces) reduce_all();
    for (std::size_t member = 0; member < members; ++member) expected.push_back(result_of(member));
  }

  // The number of rows that a member gets from each member, for operations that request memory for
  // their output.
  std::vector<std::int64_t> received_rows(std::size_t member) const {
    if (call.operation == Operation::kAllgather) return call.rows;
    std::vector<std::int64_t> rows;
    for (const std::vector<std::int64_t>& sent : call.splits) rows.push_back(sent[member]);
    return rows;
  }

  CallInTest call;
  std::vector<Buffer> inputs;
  std::vector<Buffer> expected;

 private:
  void reduce_all() {
    std::vector<const std::byte*> pointers;
    std::int64_t rows = 0;
    for (std::size_t member = 0; member < inputs.size(); ++member) {
      if (call.has_joined(member)) {
        if (call.reduction.op == ReduceOp::kAdasum) pointers.push_back(nullptr);
        continue;
      }
      pointers.push_back(inputs[member].data());
      rows = call.rows[member];
    }
    if (call.reduction.op == ReduceOp::kAverageOfPresent)
      call.reduction.divisor = static_cast<int>(pointers.size());
    reduced_.resize(static_cast<std::size_t>(rows * call.row_bytes()));
    const std::array outputs = {reduced_.data()};
    if (call.reduction.op == ReduceOp::kAdasum && call.hierarchical_adasum)
      combine_averages_of_hosts(rows * call.row_elements);
    else if (sums_by_host())
      reduce_by_host(rows * call.row_elements);
    else
      reduce(call.reduction, pointers, outputs, rows * call.row_elements);
  }

  // True if each host rounds its own sum to the tensor's dtype, or lets the sum wrap around. False
  // for an Adasum, and for an average that divides a sum of a wider type: their results are
  // computed from the inputs of all hosts together.
  bool sums_by_host() const {
    const ReduceOp op = call.reduction.op;
    const DTypeRow& row = row_of(call.reduction.dtype);
    const bool is_average = op == ReduceOp::kAverage || op == ReduceOp::kAverageOfPresent;
    const bool is_float =
        row.dlpack_code == DLPackCode::kFloat || row.dlpack_code == DLPackCode::kBFloat;
    const bool has_wider_sum = is_average && !is_float && row.bytes < 8;
    return !call.hosts.empty() && op != ReduceOp::kAdasum && !has_wider_sum;
  }

  // Computes the Adasum of the averages of the hosts. In these averages, members that have joined
  // count as zeros.
  void combine_averages_of_hosts(std::int64_t count) {
    std::vector<Buffer> averages;
    std::vector<const std::byte*> pointers;
    for (const std::vector<int>& members : call.hosts) {
      Reduction host_reduction = {.dtype = call.reduction.dtype, .op = ReduceOp::kAverage};
      host_reduction.divisor = static_cast<int>(members.size());
      std::vector<const std::byte*> contributions;
      for (const int member : members)
        if (!call.has_joined(static_cast<std::size_t>(member)))
          contributions.push_back(inputs[static_cast<std::size_t>(member)].data());
      Buffer& average = averages.emplace_back(reduced_.size());
      const std::array outputs = {average.data()};
      if (!contributions.empty()) reduce(host_reduction, contributions, outputs, count);
      pointers.push_back(contributions.empty() ? nullptr : average.data());
    }
    const std::array outputs = {reduced_.data()};
    reduce(call.reduction, pointers, outputs, count);
  }

  // Computes the sum of each host, rounded to the type of the tensor, and then reduces these sums.
  void reduce_by_host(std::int64_t count) {
    Reduction host_reduction = call.reduction;
    if (host_reduction.op == ReduceOp::kAverage || host_reduction.op == ReduceOp::kAverageOfPresent)
      host_reduction.op = ReduceOp::kSum;
    host_reduction.postscale = 1;
    Reduction final_reduction = call.reduction;
    final_reduction.prescale = 1;
    std::vector<Buffer> sums;
    for (const std::vector<int>& members : call.hosts) {
      std::vector<const std::byte*> pointers;
      for (const int member : members)
        if (!call.has_joined(static_cast<std::size_t>(member)))
          pointers.push_back(inputs[static_cast<std::size_t>(member)].data());
      if (pointers.empty()) continue;
      sums.emplace_back(reduced_.size());
      const std::array outputs = {sums.back().data()};
      reduce(host_reduction, pointers, outputs, count);
    }
    std::vector<const std::byte*> pointers;
    for (const Buffer& sum : sums) pointers.push_back(sum.data());
    const std::array outputs = {reduced_.data()};
    reduce(final_reduction, pointers, outputs, count);
  }

  Buffer part(const Buffer& whole, std::int64_t first_row, std::int64_t rows) const {
    const auto begin = whole.begin() + first_row * call.row_bytes();
    return {begin, begin + rows * call.row_bytes()};
  }

  Buffer result_of(std::size_t member) const {
    const int index = static_cast<int>(member);
    switch (call.operation) {
      case Operation::kAllreduce:
        return call.has_joined(member) ? Buffer() : reduced_;
      case Operation::kBroadcast:
        return inputs[static_cast<std::size_t>(call.root)];
      case Operation::kReducescatter:
        return part(reduced_, first_scattered_row(call.rows[0], call.members(), index),
                    scattered_rows(call.rows[0], call.members(), index));
      case Operation::kAllgather:
      case Operation::kAlltoall:
        return gathered_rows(member);
      case Operation::kBarrier:
      case Operation::kJoin:
      case Operation::kSend:
      case Operation::kReceive:
        break;
    }
    return {};
  }

  Buffer gathered_rows(std::size_t member) const {
    Buffer rows_of_all_members;
    const std::vector<std::int64_t> rows = received_rows(member);
    for (std::size_t from = 0; from < inputs.size(); ++from) {
      std::int64_t first_row = 0;
      for (std::size_t to = 0; !call.splits.empty() && to < member; ++to)
        first_row += call.splits[from][to];
      const Buffer piece = part(inputs[from], first_row, rows[from]);
      rows_of_all_members.insert(rows_of_all_members.end(), piece.begin(), piece.end());
    }
    return rows_of_all_members;
  }

  Buffer reduced_;
};

// Whether the operation supports this dtype and this reduction.
inline bool is_supported(Operation operation, DType dtype, ReduceOp op) {
  if (op == ReduceOp::kAdasum && operation != Operation::kAllreduce) return false;
  return check_reduction(dtype, op).ok();
}

// The step adds the dot products of an Adasum slice by slice; the expected result was computed
// without slices. So the last bits of the weights differ. Only a float64 result is precise enough
// to show this difference.
inline bool is_correct(const Reduction& reduction, const Buffer& actual, const Buffer& expected) {
  if (reduction.op != ReduceOp::kAdasum || reduction.dtype != DType::kFloat64)
    return same_bytes(actual, expected);
  if (actual.size() != expected.size()) return false;
  double largest_expected = 0;
  double largest_error = 0;
  for (std::size_t begin = 0; begin < actual.size(); begin += sizeof(double)) {
    double element = 0;
    double expected_element = 0;
    std::memcpy(&element, &actual[begin], sizeof(double));
    std::memcpy(&expected_element, &expected[begin], sizeof(double));
    largest_expected = std::max(largest_expected, std::abs(expected_element));
    largest_error = std::max(largest_error, std::abs(element - expected_element));
  }
  return largest_error <= 0x1p-46 * largest_expected;
}

// User memory between guard bytes that must not change. It is unaligned if `shift` is odd. It lies
// in `heap` unless `heap` is null.
class GuardedMemory {
 public:
  GuardedMemory(std::size_t bytes, unsigned shift, SharedHeap* heap = nullptr)
      : begin_(kGuardBytes + shift % 2), bytes_(bytes), total_bytes_(begin_ + bytes + kGuardBytes) {
    if (heap != nullptr)
      memory_ = heap->allocate(total_bytes_).value();
    else
      memory_ = std::shared_ptr<std::byte>(new std::byte[total_bytes_],
                                           std::default_delete<std::byte[]>());
    fill(kUninitialized);
  }

  static constexpr std::byte kUninitialized{0xee};

  std::byte* data() { return memory_.get() + begin_; }
  Buffer content() const { return {memory_.get() + begin_, memory_.get() + begin_ + bytes_}; }
  bool guards_are_intact() const {
    const auto is_uninitialized = [](std::byte byte) { return byte == kUninitialized; };
    const std::byte* const begin = memory_.get();
    return std::all_of(begin, begin + begin_, is_uninitialized) &&
           std::all_of(begin + begin_ + bytes_, begin + total_bytes_, is_uninitialized);
  }
  void fill(std::byte value) { std::memset(memory_.get(), static_cast<int>(value), total_bytes_); }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  std::size_t begin_;
  std::size_t bytes_;
  std::size_t total_bytes_;
  std::shared_ptr<std::byte> memory_;  // no other object owns this memory
};

class MemberCallInTest {
 public:
  // `heap` is used if the call has this member's memory in a heap.
  MemberCallInTest(const PreparedCall& prepared, int member, SharedHeap* heap = nullptr)
      : prepared_(prepared),
        member_(static_cast<std::size_t>(member)),
        in_place_(prepared.call.in_place && row_of(prepared.call.operation).may_be_in_place),
        heap_(prepared.call.is_in_heap(member_) ? heap : nullptr),
        input_(original_input().size(), prepared.call.seed, heap_),
        output_(receives_rows() ? 0 : expected().size(), prepared.call.seed + 1, heap_) {
    std::ranges::copy(original_input(), input_.data());
  }
  MemberCallInTest(const MemberCallInTest&) = delete;
  MemberCallInTest& operator=(const MemberCallInTest&) = delete;

  CollectiveStep step(Group& group, const StepIdentity& identity) {
    const CallInTest& call = prepared_.call;
    const std::int64_t rows = call.rows[member_];
    const bool joined = call.has_joined(member_);
    const bool reads_input = !joined && (!row_of(call.operation).rooted ||
                                         static_cast<std::size_t>(call.root) == member_);
    return choose_step(
        group, identity,
        {.operation = call.operation,
         .dtype = call.reduction.dtype,
         .reduce_op = call.reduction.op,
         .prescale = call.reduction.prescale,
         .postscale = call.reduction.postscale,
         .root = call.root,
         .count = rows * call.row_elements,
         .rows = rows,
         .row_bytes = call.row_bytes(),
         .splits = call.splits.empty() ? std::vector<std::int64_t>{} : call.splits[member_],
         .joined = joined,
         .input = reads_input ? input_.data() : nullptr,
         .output = joined || receives_rows() ? nullptr : output().data(),
         .allocate = [this](std::span<const std::int64_t> received) {
           return allocate(received);
         }});
  }

  // True if the step has neither written user memory nor requested memory.
  bool is_untouched() const {
    return !allocated_ && same_bytes(input_.content(), original_input()) &&
           same_bytes(output_.content(),
                      Buffer(output_.content().size(), GuardedMemory::kUninitialized)) &&
           guards_are_intact();
  }
  // Checks the result and then overwrites all memory. If another member still needs that memory,
  // the result of that member becomes wrong.
  void expect_result() {
    SCOPED_TRACE(testing::Message() << "member " << member_ << " of " << prepared_.call.members()
                                    << ", " << prepared_.call.text());
    EXPECT_TRUE(is_correct(prepared_.call.reduction,
                           in_place_ ? input_.content() : output_.content(), expected()));
    EXPECT_TRUE(in_place_ || same_bytes(input_.content(), original_input()))
        << "the input was written";
    EXPECT_TRUE(guards_are_intact());
    EXPECT_EQ(allocated_, receives_rows());
    if (receives_rows()) {
      EXPECT_EQ(received_rows_, prepared_.received_rows(member_));
    }
    constexpr std::byte kOverwritten{0xdd};
    input_.fill(kOverwritten);
    output_.fill(kOverwritten);
  }

 private:
  const Buffer& original_input() const { return prepared_.inputs[member_]; }
  const Buffer& expected() const { return prepared_.expected[member_]; }
  bool receives_rows() const {
    return row_of(prepared_.call.operation).output_rule == OutputRule::kEngineMemory;
  }
  GuardedMemory& output() { return in_place_ ? input_ : output_; }
  bool guards_are_intact() const {
    return input_.guards_are_intact() && output_.guards_are_intact();
  }
  std::byte* allocate(std::span<const std::int64_t> rows) {
    EXPECT_FALSE(allocated_) << "memory was requested twice";
    allocated_ = true;
    received_rows_.assign(rows.begin(), rows.end());
    std::int64_t total = 0;
    for (const std::int64_t count : rows) total += count;
    output_ = GuardedMemory(static_cast<std::size_t>(total * prepared_.call.row_bytes()),
                            prepared_.call.seed, heap_);
    return output_.data();
  }

  const PreparedCall& prepared_;
  std::size_t member_;
  bool in_place_;
  SharedHeap* heap_;
  GuardedMemory input_;
  GuardedMemory output_;
  bool allocated_ = false;
  std::vector<std::int64_t> received_rows_;
};

// All operations except the join, which is not a step.
inline std::vector<OperationRow> operations_with_steps() {
  std::vector<OperationRow> rows(kOperations.begin(), kOperations.end());
  std::erase_if(rows, [](const OperationRow& row) { return row.operation == Operation::kJoin; });
  return rows;
}

// A random number below `end`. Unlike std::uniform_int_distribution, it is the same with every
// standard library.
inline std::int64_t random_below(std::mt19937& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

// Completes `call` with random arguments. Each member contributes about `rows` rows.
inline CallInTest random_call(std::mt19937& random, CallInTest call, int members,
                              std::int64_t rows) {
  const auto size = static_cast<std::size_t>(members);
  constexpr double kScales[] = {1, 1, 0.5, -1.25, 3};
  call.rows.assign(size, rows);
  call.root = static_cast<int>(random_below(random, members));
  call.in_place = random_below(random, 2) == 0;
  call.seed = static_cast<unsigned>(random_below(random, 1 << 20));
  call.reduction.prescale = kScales[random_below(random, 5)];
  call.reduction.postscale = kScales[random_below(random, 5)];
  if (call.operation == Operation::kAllgather)
    for (std::int64_t& member_rows : call.rows)
      member_rows = rows * random_below(random, 4) / members;
  if (call.operation == Operation::kAlltoall) {
    for (std::int64_t& member_rows : call.rows) {
      std::vector<std::int64_t>& splits = call.splits.emplace_back();
      member_rows = random_below(random, 3);  // rows that are sent to no member
      for (int to = 0; to < members; ++to) {
        splits.push_back(rows * random_below(random, 3) / members + random_below(random, 2));
        member_rows += splits.back();
      }
    }
  }
  if (call.operation == Operation::kAllreduce && random_below(random, 3) == 0) {
    for (int member = 0; member < members; ++member)
      call.joined.push_back(random_below(random, 2) == 0);
    call.joined[static_cast<std::size_t>(random_below(random, members))] = false;
  }
  // The memory of all, some or no members is in heaps.
  if (const auto kind = random_below(random, 4); kind < 3)
    for (int member = 0; member < members; ++member)
      call.in_heap.push_back(kind < 2 || random_below(random, 2) == 0);
  return call;
}

// Runs all calls one after another on one board, with a thread for every member.
inline void run_in_threads(int members, const std::vector<PreparedCall>& calls) {
  GroupInTest group(members);
  group.run_in_threads([&](int member) {
    for (std::uint32_t index = 0; index < calls.size(); ++index) {
      MemberCallInTest call(calls[index], member, &group.heap(member));
      CollectiveStep step = call.step(group.group(member), step_identity(index + 1));
      ASSERT_EQ(group.finish(member, step), Progress::kDone);
      call.expect_result();
    }
  });
}

// Runs the calls of one member, one after another. A test decides when the member advances.
class MemberRun {
 public:
  // `calls` must outlive this object.
  MemberRun(const std::vector<PreparedCall>& calls, int member) : calls_(calls), member_(member) {}

  bool is_over() const { return next_call_ == calls_.size(); }
  // Calls advance() once. Returns false if that did nothing, because the member waits for others or
  // has finished all calls.
  bool advance_once(Group& group, SharedHeap& heap) {
    if (is_over()) return false;
    if (!step_) {
      call_ = std::make_unique<MemberCallInTest>(calls_[next_call_], member_, &heap);
      step_ = call_->step(group, step_identity(static_cast<std::uint32_t>(next_call_ + 1)));
    }
    const Progress progress = advance(*step_);
    EXPECT_TRUE(progress != Progress::kMismatch && progress != Progress::kMisprediction);
    if (progress == Progress::kDone) {
      call_->expect_result();
      step_.reset();
      ++next_call_;
    }
    return progress == Progress::kAdvanced || progress == Progress::kDone;
  }

 private:
  const std::vector<PreparedCall>& calls_;
  const int member_;
  std::size_t next_call_ = 0;
  std::unique_ptr<MemberCallInTest> call_;
  std::optional<CollectiveStep> step_;
};

// The runs of all members.
inline std::vector<MemberRun> runs_of_members(int members, const std::vector<PreparedCall>& calls) {
  std::vector<MemberRun> runs;
  for (int member = 0; member < members; ++member) runs.emplace_back(calls, member);
  return runs;
}

// Runs all calls for all members in one thread, in the order that a test chooses.
class InterleavedRun {
 public:
  InterleavedRun(int members, const std::vector<PreparedCall>& calls)
      : group_(members), runs_(runs_of_members(members, calls)) {}

  int members() const { return group_.members(); }
  bool is_over() const { return std::ranges::all_of(runs_, &MemberRun::is_over); }
  // The same as MemberRun::advance_once().
  bool advance_member(int member) {
    return runs_[static_cast<std::size_t>(member)].advance_once(group_.group(member),
                                                                group_.heap(member));
  }

 private:
  GroupInTest group_;
  std::vector<MemberRun> runs_;
};

// Advances members in a random order. One time in four, the chosen member runs as far ahead as the
// others allow, even into later calls.
inline void run_in_random_order(int members, const std::vector<PreparedCall>& calls,
                                unsigned seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  InterleavedRun run(members, calls);
  for (int idle_turns = 0; !run.is_over() && !::testing::Test::HasFailure();) {
    const int member = static_cast<int>(random_below(random, members));
    const bool runs_ahead = random_below(random, 4) == 0;
    const bool has_advanced = run.advance_member(member);
    while (runs_ahead && run.advance_member(member)) {
    }
    idle_turns = has_advanced ? 0 : idle_turns + 1;
    ASSERT_LT(idle_turns, 1000) << "all unfinished members wait";
  }
}

// Advances the member `slow` only when all others wait for it, and then only once.
inline void run_with_a_slow_member(int members, const std::vector<PreparedCall>& calls, int slow) {
  SCOPED_TRACE(testing::Message() << "slow: " << slow);
  InterleavedRun run(members, calls);
  while (!run.is_over() && !::testing::Test::HasFailure()) {
    bool any_has_advanced = false;
    for (int member = 0; member < members; ++member)
      while (member != slow && run.advance_member(member)) any_has_advanced = true;
    ASSERT_TRUE(run.advance_member(slow) || any_has_advanced) << "all unfinished members wait";
  }
}

}  // namespace farandole
