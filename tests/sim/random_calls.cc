#include "random_calls.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/format.h"

namespace farandole::sim {

int random_worker_count(Random& random) {
  const int kind = random.below(100);
  if (kind < 65) return random.between(2, 5);
  if (kind < 90) return random.between(6, 12);
  if (kind < 98) return random.between(13, 32);
  return random.between(33, 64);
}

std::vector<std::vector<int>> random_groups(Random& random, int workers) {
  if (workers == 3 && random.chance(50)) return {{0, 1}, {1, 2}, {0, 2}};
  std::vector<int> all(static_cast<std::size_t>(workers));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> groups;
  for (int count = random.between(1, 3); count > 0; --count) {
    auto members = all;
    if (random.chance(50)) {
      random.shuffle(members);
      members.resize(static_cast<std::size_t>(random.between(random.chance(90) ? 2 : 1, workers)));
      std::sort(members.begin(), members.end());
    }
    groups.push_back(std::move(members));
  }
  return groups;
}

AgreementOptions random_options(Random& random, Time delay_max) {
  AgreementOptions options;
  options.names_max = static_cast<std::size_t>(random.chance(60) ? 65536 : random.between(1, 4));
  options.fusion_bytes = random.pick(std::vector<std::int64_t>{0, 100, 2000, 1 << 20});
  // Some grace times are so short that they end before the awaited message can arrive.
  const Time grace = delay_max * random.pick(std::vector<Time>{1, 5, 40}) + 1;
  options.grace_time = std::chrono::microseconds(grace);
  return options;
}

namespace {

// Any operation except a join.
Operation random_operation(Random& random) {
  constexpr int kJoin = static_cast<int>(Operation::kJoin);
  const int drawn = random.below(static_cast<int>(kOperations.size()) - 1);
  return static_cast<Operation>(drawn < kJoin ? drawn : drawn + 1);
}

}  // namespace

Signature random_signature(Random& random, std::string name) {
  Signature signature;
  signature.name = std::move(name);
  // At least 30 % are allreduces. Of the other operations, only allgather runs while a member has
  // joined.
  if (!random.chance(30))
    signature.operation = random_operation(random);
  else
    signature.operation = Operation::kAllreduce;
  const auto& row = row_of(signature.operation);
  if (row.shape_rule == ShapeRule::kNone) return signature;
  signature.dtype = random.chance(50) ? DType::kFloat32 : DType::kInt64;
  for (int count = random.below(4); count > 0; --count)
    signature.dimensions.push_back(random.between(1, 9));
  if (row.reduces && random.chance(20)) signature.reduce_op = ReduceOp::kMin;
  if (row.reduces && random.chance(20)) signature.prescale = random.chance(50) ? 0 : 0.1;
  if (row.reduces && random.chance(20)) signature.postscale = 1.0 / 3;
  return signature;
}

Signature random_allreduce(Random& random, std::string name) {
  Signature signature;
  signature.name = std::move(name);
  signature.operation = Operation::kAllreduce;
  signature.dtype = random.chance(80) ? DType::kFloat32 : DType::kInt64;
  for (int count = random.below(3); count > 0; --count)
    signature.dimensions.push_back(random.between(1, 9));
  return signature;
}

Signature with_call_error(Random& random, const Signature& signature) {
  const auto name = shortened(signature.name, 100);
  return {.name = signature.name,
          .operation = signature.operation,
          .dimensions = {},
          .call_error = format_text("`{}` has call error {}", name, random.below(2))};
}

Signature changed_signature(Random& random, Signature signature) {
  if (random.chance(15)) return with_call_error(random, signature);
  const auto& row = row_of(signature.operation);
  const int part = row.shape_rule == ShapeRule::kNone ? 0 : random.below(row.reduces ? 7 : 5);
  switch (part) {
    case 0: {
      const bool is_barrier = signature.operation == Operation::kBarrier;
      return {.name = std::move(signature.name),
              .operation = is_barrier ? Operation::kAllgather : Operation::kBarrier,
              .dimensions = {}};
    }
    case 1:
      if (row.reduces) signature.reduce_op = ReduceOp::kMax;
      signature.dimensions.push_back(77);
      break;
    case 2:
      if (row.rooted) signature.root_rank = 1;
      signature.dtype = DType::kFloat16;
      break;
    case 3:
      signature.dtype = DType::kBool;
      break;
    case 5:
      signature.prescale = signature.prescale == 0 ? -0.0 : 77;
      break;
    case 6:
      signature.postscale = 77;
      break;
    default:
      signature.dimensions.assign({5, 6, 77});
  }
  return signature;
}

void make_rejected(Random& random, Call& call) {
  if (random.chance(10)) {
    call.common = with_call_error(random, call.common);
    return;
  }
  auto members = call.makers;
  random.shuffle(members);
  const auto last = static_cast<int>(members.size()) - 1;
  members.resize(static_cast<std::size_t>(random.between(1, last)));
  auto other = changed_signature(random, call.common);
  for (const int worker : members) {
    if (random.chance(20)) other = changed_signature(random, call.common);
    call.odd_signatures.emplace(worker, other);
  }
}

}  // namespace farandole::sim
