#include "launcher/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace farandole {
namespace {

using ::testing::_;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

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

TEST(WorkerEnvironment, HasTheVariablesOfTorchrun) {
  EXPECT_THAT(
      torchrun_variables(3, 4, 4711),
      UnorderedElementsAre(Pair("RANK", "3"), Pair("WORLD_SIZE", "4"), Pair("LOCAL_RANK", "3"),
                           Pair("LOCAL_WORLD_SIZE", "4"), Pair("GROUP_RANK", "0"),
                           Pair("MASTER_ADDR", "127.0.0.1"), Pair("MASTER_PORT", "4711"),
                           Pair("TORCHELASTIC_RUN_ID", "started-by-farandole-run")));
  EXPECT_THAT(torchrun_variables(0, 1, 0), Contains(Pair("MASTER_PORT", "")));
}

TEST(WorkerEnvironment, InheritsNothingOfTorchelastic) {
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  ::setenv("FARANDOLE_TEST_INHERITS", "this", 1);
  const auto inherited = inherited_environment();
  EXPECT_THAT(inherited, Contains(Pair("FARANDOLE_TEST_INHERITS", "this")));
  EXPECT_THAT(inherited, Not(Contains(Pair("TORCHELASTIC_USE_AGENT_STORE", _))));
  ::unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  ::unsetenv("FARANDOLE_TEST_INHERITS");
}

TEST(WorkerEnvironment, LaterListsOverrideEarlierOnes) {
  EXPECT_THAT(merge_environment({{{"A", "1"}, {"B", "1"}}, {{"B", "2"}}, {{"C", "x=y"}}}),
              ElementsAre("A=1", "B=2", "C=x=y"));
}

}  // namespace
}  // namespace farandole
