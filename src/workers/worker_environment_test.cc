#include "workers/worker_environment.h"

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

const NodeLayout kFourWorkers{.node = 0, .workers = {4}};

TEST(WorkerEnvironment, HasTheNumberOfThreads) {
  EXPECT_THAT(default_variables(4),
              UnorderedElementsAre(Pair("OMP_NUM_THREADS", "4"), Pair("PYTHONUNBUFFERED", "1")));
}

TEST(WorkerEnvironment, HasTheRankAndTheSize) {
  const auto variables =
      rank_variables(kFourWorkers, 3, {.rendezvous = 9, .flight_record = 11}, {});
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_RANK", "3")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_SIZE", "4")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_CROSS_SIZE", "1")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_LOCAL_RANK", "3")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_SIZE", "4")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_RENDEZVOUS_DESCRIPTOR", "9")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_FLIGHT_RECORD_DESCRIPTOR", "11")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_CHANNEL_DESCRIPTOR", "-1")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_LAUNCHER_DESCRIPTOR", "-1")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_SECRET_DESCRIPTOR", "-1")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_JOB_STORE", "")));
}

TEST(WorkerEnvironment, CountsRanksOverAllNodes) {
  const NodeLayout layout{.node = 1, .workers = {3, 2, 1}};
  const auto variables = rank_variables(layout, 1, {.launcher = 13, .secret = 12},
                                        {.job_store = "fox:1", .master_address = "fox"});
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_RANK", "4")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_SIZE", "6")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_LOCAL_RANK", "1")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_LOCAL_SIZE", "2")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_CROSS_RANK", "1")));
  EXPECT_THAT(variables, Contains(Pair("HOROVOD_CROSS_SIZE", "2")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_SECRET_DESCRIPTOR", "12")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_JOB_STORE", "fox:1")));
  EXPECT_THAT(variables, Contains(Pair("FARANDOLE_LAUNCHER_DESCRIPTOR", "13")));
  const auto torchrun = torchrun_variables(layout, 1, {.master_address = "fox", .master_port = 5});
  EXPECT_THAT(torchrun, Contains(Pair("RANK", "4")));
  EXPECT_THAT(torchrun, Contains(Pair("WORLD_SIZE", "6")));
  EXPECT_THAT(torchrun, Contains(Pair("LOCAL_RANK", "1")));
  EXPECT_THAT(torchrun, Contains(Pair("LOCAL_WORLD_SIZE", "2")));
  EXPECT_THAT(torchrun, Contains(Pair("GROUP_RANK", "1")));
  EXPECT_THAT(torchrun, Contains(Pair("MASTER_ADDR", "fox")));
  EXPECT_THAT(torchrun, Contains(Pair("MASTER_PORT", "5")));
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
      torchrun_variables(kFourWorkers, 3, {.master_port = 4711}),
      UnorderedElementsAre(Pair("RANK", "3"), Pair("WORLD_SIZE", "4"), Pair("LOCAL_RANK", "3"),
                           Pair("LOCAL_WORLD_SIZE", "4"), Pair("GROUP_RANK", "0"),
                           Pair("MASTER_ADDR", "127.0.0.1"), Pair("MASTER_PORT", "4711"),
                           Pair("TORCHELASTIC_RUN_ID", "started-by-farandole-run")));
  EXPECT_THAT(torchrun_variables({}, 0, {}), Contains(Pair("MASTER_PORT", "")));
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

TEST(WorkerEnvironment, RecognisesNamesOfVariables) {
  for (const char* name : {"PATH", "_", "a1", "Z_9"}) EXPECT_TRUE(is_variable_name(name)) << name;
  for (const char* name : {"", "1A", "A B", "A-B", "Ä"})
    EXPECT_FALSE(is_variable_name(name)) << name;
}

TEST(WorkerEnvironment, LaterListsOverrideEarlierOnes) {
  EXPECT_THAT(merge_environment({{{"A", "1"}, {"B", "1"}}, {{"B", "2"}}, {{"C", "x=y"}}}),
              ElementsAre("A=1", "B=2", "C=x=y"));
}

}  // namespace
}  // namespace farandole
