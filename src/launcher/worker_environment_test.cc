#include "launcher/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Pair;

TEST(WorkerEnvironment, DividesTheCores) {
  EXPECT_THAT(default_variables(2, 8), Contains(Pair("OMP_NUM_THREADS", "4")));
  EXPECT_THAT(default_variables(3, 8), Contains(Pair("OMP_NUM_THREADS", "2")));
  EXPECT_THAT(default_variables(4, 2), Contains(Pair("OMP_NUM_THREADS", "1")));
}

TEST(WorkerEnvironment, HasTheRankAndTheSize) {
  const auto variables = rank_variables(3, 4, {.rendezvous = 9, .flight_record = 11});
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_RANK", "3")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_SIZE", "4")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_CROSS_SIZE", "1")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_LOCAL_RANK", "3")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_SIZE", "4")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_RENDEZVOUS_DESCRIPTOR", "9")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_FLIGHT_RECORD_DESCRIPTOR", "11")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_CHANNEL_DESCRIPTOR", "-1")));
}

TEST(WorkerEnvironment, WorkersKeepFreedMemory) {
  const auto variable = kept_memory_variable(std::size_t{3} << 30, {{"PATH", "/bin"}});
  ASSERT_TRUE(variable);
  EXPECT_EQ(variable->first, "GLIBC_TUNABLES");
  EXPECT_THAT(variable->second, ::testing::HasSubstr("mmap_threshold=3221225472:"));
  EXPECT_FALSE(kept_memory_variable(std::size_t{32} << 20, {}));
}

TEST(WorkerEnvironment, LeavesTheUsersMemorySettingsAlone) {
  EXPECT_FALSE(kept_memory_variable(std::size_t{3} << 30, {{"GLIBC_TUNABLES", ""}}));
  EXPECT_FALSE(kept_memory_variable(std::size_t{3} << 30, {{"MALLOC_ARENA_MAX", "2"}}));
}

TEST(WorkerEnvironment, LaterListsOverrideEarlierOnes) {
  EXPECT_THAT(merge_environment({{{"A", "1"}, {"B", "1"}}, {{"B", "2"}}, {{"C", "x=y"}}}),
              ElementsAre("A=1", "B=2", "C=x=y"));
}

}  // namespace
}  // namespace farandole
