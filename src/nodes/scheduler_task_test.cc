#include "nodes/scheduler_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Result<std::optional<SchedulerTask>> task_of(const Variables& variables) {
  return find_scheduler_task([&](const char* name) -> const char* {
    const auto variable = variables.find(name);
    return variable == variables.end() ? nullptr : variable->second.c_str();
  });
}

Variables slurm_variables() {
  return {{"SLURM_PROCID", "0"},  // with --distribution=arbitrary
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
          {"SLURM_STEP_NODELIST", "hen[07-08]"},
          {"SLURM_JOB_ID", "10001"},
          {"SLURM_STEP_ID", "3"}};
}

TEST(SchedulerTaskTest, HasARowForEachScheduler) {
  struct Case {
    Variables variables;
    std::string_view scheduler;
    int node;
    std::optional<int> nodes;
    std::optional<std::string> join;
  };
  const Case cases[] = {
      {slurm_variables(), "srun", 1, 2, "hen07:20034"},
      {{{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
       "Open MPI's mpirun",
       3,
       4,
       std::nullopt},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "MPICH's mpiexec", 0, 2, std::nullopt},
      {{{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}}, "jsrun", 1, 2, std::nullopt},
      {{{"PALS_RANKID", "1"}}, "PALS", 1, std::nullopt, std::nullopt},
      {{{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "8"}}, "Flux", 1, 8, std::nullopt},
      {{{"PET_NODE_RANK", "1"},
        {"PET_NNODES", "2"},
        {"PET_MASTER_ADDR", "fd00::1"},
        {"PET_MASTER_PORT", "29500"}},
       "Kubeflow Trainer",
       1,
       2,
       "[fd00::1]:29500"},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}},
       "Open MPI's mpirun",
       1,
       2,
       "10.0.0.4:6000"},
      {{{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}},
       "SageMaker",
       1,
       2,
       "algo-1:20000"},
      {{{"CLUSTER_SPEC", R"({"cluster":{"workerpool0":["w0:2222"],"workerpool1":["w1:2222"]},)"
                         R"("task":{"type":"workerpool1","index":0}})"}},
       "Vertex AI",
       1,
       2,
       "w0:20000"},
      {{{"JOB_COMPLETION_INDEX", "5"}}, "a job of Kubernetes", 5, std::nullopt, std::nullopt},
      {{{"VC_TASK_INDEX", "0"}}, "Volcano", 0, std::nullopt, std::nullopt},
  };
  for (const Case& expected : cases) {
    SCOPED_TRACE(std::string(expected.scheduler));
    const auto task = task_of(expected.variables);
    ASSERT_TRUE(task.ok() && task->has_value());
    EXPECT_EQ((*task)->scheduler, expected.scheduler);
    EXPECT_EQ((*task)->node, expected.node);
    EXPECT_EQ((*task)->nodes, expected.nodes);
    EXPECT_EQ((*task)->join, expected.join);
    EXPECT_EQ((*task)->nodes_on_host, 1);
  }
}

TEST(SchedulerTaskTest, IsEmptyWithoutAScheduler) {
  EXPECT_FALSE(task_of({})->has_value());
  EXPECT_FALSE(task_of({{"SLURM_NODEID", "0"}, {"SLURM_NTASKS", "8"}})->has_value());  // sbatch
  EXPECT_FALSE(task_of({{"PMI_RANK", ""}, {"PMI_SIZE", ""}})->has_value());
  EXPECT_FALSE(task_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}})->has_value());  // a worker
}

TEST(SchedulerTaskTest, SrunMayAlsoSetThePmiVariables) {
  Variables variables = slurm_variables();
  variables["PMI_RANK"] = "0";
  variables["PMI_SIZE"] = "2";
  EXPECT_EQ((*task_of(variables))->scheduler, "srun");
  // srun has started mpiexec on one host, and mpiexec has started the process.
  variables["PMI_SIZE"] = "4";
  EXPECT_EQ((*task_of(variables))->scheduler, "MPICH's mpiexec");
}

TEST(SchedulerTaskTest, APortOfTheSchedulerIsUsed) {
  Variables variables = slurm_variables();
  variables["SLURM_STEP_RESV_PORTS"] = "12000-12001";
  EXPECT_EQ((*task_of(variables))->join, "hen07:12000");
  variables = slurm_variables();
  variables.erase("SLURM_JOB_ID");
  EXPECT_FALSE((*task_of(variables))->join.has_value());
}

TEST(SchedulerTaskTest, ImpossibleValuesAreErrors) {
  Variables variables = slurm_variables();
  variables["SLURM_NODEID"] = "x1";
  EXPECT_THAT(task_of(variables).status().message(),
              HasSubstr("SLURM_NODEID is \"x1\", which is not what srun sets"));
  variables["SLURM_NODEID"] = "2";
  EXPECT_THAT(task_of(variables).status().message(),
              HasSubstr("SLURM_NODEID=2 and SLURM_STEP_NUM_TASKS=2: there is no such process"));
}

// Completes the flags that the user gives with the values of Slurm's variables.
class CompletedBySlurm : public ::testing::Test {
 protected:
  Result<CompletedFlagValues> complete(const NodeFlagValues& flag_values) {
    return complete_node_flags(flag_values, *task_of(variables_));
  }
  std::string error_of(const NodeFlagValues& flag_values) {
    return complete(flag_values).status().message();
  }
  static NodeFlagValues flags_with_secret() {
    return {.join = {}, .nodes = {}, .node = {}, .secret = "file"};
  }

  Variables variables_ = slurm_variables();
};

TEST_F(CompletedBySlurm, TheSecretIsEnough) {
  const auto completed = complete(flags_with_secret());
  ASSERT_TRUE(completed.ok());
  EXPECT_EQ(completed->flag_values.join, "hen07:20034");
  EXPECT_EQ(completed->flag_values.nodes, "2");
  EXPECT_EQ(completed->flag_values.node, "1");
  EXPECT_EQ(completed->notice, "");
}

TEST_F(CompletedBySlurm, ValuesOfTheUserHavePriority) {
  const auto completed = complete({.join = "owl:1", .nodes = "7", .node = "6", .secret = "file"});
  EXPECT_EQ(completed->flag_values.join, "owl:1");
  EXPECT_EQ(completed->flag_values.nodes, "7");
  EXPECT_EQ(completed->flag_values.node, "6");
}

TEST_F(CompletedBySlurm, NoFlagsAreAnError) {
  EXPECT_THAT(error_of({}), AllOf(HasSubstr("srun has started this command 2 times"),
                                  HasSubstr("give --secret FILE"), HasSubstr("--nodes 1")));
  variables_ = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  EXPECT_THAT(error_of({}), HasSubstr("give --join HOST:PORT and --secret FILE"));
  variables_ = {{"TF_CONFIG", R"({"cluster":{"worker":["a:1","b:1"]},)"
                              R"("task":{"type":"worker","index":0}})"}};
  EXPECT_THAT(error_of({}), HasSubstr("TF_CONFIG describes a job of 2 processes; for one job"));
}

TEST_F(CompletedBySlurm, SeveralProcessesOnOneHostAreAnError) {
  variables_["SLURM_STEP_TASKS_PER_NODE"] = "2(x3),1";
  variables_["SLURM_STEP_NUM_TASKS"] = "7";
  for (const NodeFlagValues& flag_values : {NodeFlagValues(), flags_with_secret()})
    EXPECT_THAT(error_of(flag_values),
                AllOf(HasSubstr("srun has started this command 7 times, 2 times on this host"),
                      HasSubstr("--ntasks-per-node=1")));
}

TEST_F(CompletedBySlurm, OneNodeIsAJobOfItsOwn) {
  const auto completed = complete({.join = {}, .nodes = "1", .node = {}, .secret = {}});
  ASSERT_TRUE(completed.ok());
  EXPECT_FALSE(completed->flag_values.nodes.has_value());
  variables_["SLURM_NODEID"] = "0";
  variables_["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_FALSE(complete({})->flag_values.nodes.has_value());
  // This is the same command as on several hosts.
  EXPECT_EQ(complete(flags_with_secret())->flag_values.nodes, "1");
  EXPECT_EQ(complete(flags_with_secret())->flag_values.node, "0");
}

TEST_F(CompletedBySlurm, WithoutANumberOfNodesThereIsANotice) {
  variables_ = {{"JOB_COMPLETION_INDEX", "5"}};
  EXPECT_THAT(complete({})->notice, HasSubstr("number 5 of a job of Kubernetes"));
  const auto completed = complete({.join = "a:1", .nodes = "8", .node = {}, .secret = "file"});
  EXPECT_EQ(completed->flag_values.node, "5");
  EXPECT_EQ(completed->notice, "");
}

TEST_F(CompletedBySlurm, FlagsDoNotChangeWithoutAScheduler) {
  variables_.clear();
  EXPECT_EQ(complete(flags_with_secret())->flag_values.secret, "file");
  EXPECT_FALSE(complete(flags_with_secret())->flag_values.node.has_value());
}

}  // namespace
}  // namespace farandole
