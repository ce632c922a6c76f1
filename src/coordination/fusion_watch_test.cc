#include "coordination/fusion_watch.h"

#include <gtest/gtest.h>

#include <string>

namespace farandole {
namespace {

InternedSignature interned_tensor(const std::string& name) {
  return InternedSignature({.name = name, .operation = Operation::kAllreduce, .dimensions = {10}});
}

// Runs a superstep in steps of one submission each. Returns true if the group should learn a plan.
bool learns_after_superstep(FusionWatch& watch, std::uint32_t quiescent_points,
                            std::initializer_list<const char*> names,
                            std::uint32_t waits_between = 0) {
  bool result = false;
  std::uint32_t waits = 0;
  for (const auto* name : names) {
    watch.add(interned_tensor(name), {.waits = waits, .quiescent_points = quiescent_points});
    waits += waits_between;
    result |= watch.end_step();
  }
  return result;
}

TEST(FusionWatch, ReportsOnceThatARepeatedSuperstepCouldBeFused) {
  FusionWatch watch(100);
  EXPECT_FALSE(learns_after_superstep(watch, 1, {"a", "b"}));
  EXPECT_FALSE(learns_after_superstep(watch, 2, {"b", "a"}));
  EXPECT_TRUE(learns_after_superstep(watch, 3, {"a", "b"}));
  EXPECT_FALSE(learns_after_superstep(watch, 4, {"a", "b"}));
  EXPECT_FALSE(learns_after_superstep(watch, 5, {"a", "b"}));
}

TEST(FusionWatch, ReportsNothingIfNothingCanBeFused) {
  FusionWatch watch_of_small_buckets(10);
  FusionWatch watch_of_waits(100);
  FusionWatch watch_of_changing_names(100);
  FusionWatch watch_of_single_calls(100);
  for (std::uint32_t round = 1; round < 10; ++round) {
    EXPECT_FALSE(learns_after_superstep(watch_of_small_buckets, round, {"a", "b"}));
    EXPECT_FALSE(learns_after_superstep(watch_of_waits, round, {"a", "b"}, 1));
    EXPECT_FALSE(learns_after_superstep(watch_of_changing_names, round,
                                        {"a", std::to_string(round).c_str()}));
    EXPECT_FALSE(learns_after_superstep(watch_of_single_calls, round, {"a"}));
  }
}

TEST(FusionWatch, ReportsNothingIfABatchIsFusedAlready) {
  FusionWatch watch(100);
  const auto a = interned_tensor("a");
  const auto b = interned_tensor("b");
  for (std::uint32_t round = 1; round < 10; ++round) {
    watch.add(a, {.quiescent_points = round, .batch = 1});
    watch.add(b, {.quiescent_points = round, .batch = 1});
    EXPECT_FALSE(watch.end_step());
  }
}

}  // namespace
}  // namespace farandole
