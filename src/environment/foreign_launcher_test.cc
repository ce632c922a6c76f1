#include "environment/foreign_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <ostream>
#include <string>

#include "base/descriptor.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<std::optional<ForeignJob>> find(const Variables& variables) {
  return find_foreign_job([&](const char* name) -> const char* {
    const auto variable = variables.find(name);
    return variable == variables.end() ? nullptr : variable->second.c_str();
  });
}

ForeignJob job_of(const Variables& variables) {
  const auto job = find(variables);
  EXPECT_TRUE(job.ok()) << job.status().message();
  EXPECT_TRUE(job.ok() && *job);
  return job.ok() && *job ? **job : ForeignJob{};
}

std::string error_of(const Variables& variables) {
  const auto job = find(variables);
  EXPECT_EQ(job.status().code(), StatusCode::kFixCall);
  return job.status().message();
}

const Variables kTorchrun = {{"RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "localhost"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "7"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(ForeignLauncher, IgnoresWhatOurLauncherSetsForOtherLibraries) {
  const Variables started_by_farandole = with(kTorchrun, kTorchrunJobVariable, kOwnTorchrunJob);
  EXPECT_FALSE(find(started_by_farandole)->has_value());
  Variables both = started_by_farandole;
  both.insert({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(job_of(both).topology.size, 1);
}

TEST(ForeignLauncher, FindsTheRankUnderTorchrun) {
  const ForeignJob job = job_of(kTorchrun);
  EXPECT_EQ(job.topology.rank, 1);
  EXPECT_EQ(job.topology.size, 4);
  EXPECT_EQ(job.topology.local_rank, 1);
  EXPECT_EQ(job.topology.local_size, 4);
  EXPECT_EQ(job.rendezvous_id,
            job_of(with(with(kTorchrun, "RANK", "2"), "LOCAL_RANK", "2")).rendezvous_id);
}

TEST(ForeignLauncher, DifferentJobsHaveDifferentRendezvousIds) {
  const std::string rendezvous_id = job_of(kTorchrun).rendezvous_id;
  EXPECT_NE(rendezvous_id, job_of(with(kTorchrun, "MASTER_PORT", "29501")).rendezvous_id);
  EXPECT_NE(rendezvous_id, job_of(with(kTorchrun, "TORCHELASTIC_RUN_ID", "other")).rendezvous_id);
  EXPECT_NE(rendezvous_id,
            job_of(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1")).rendezvous_id);
}

TEST(ForeignLauncher, FindsTheRankUnderMpirunAndSrun) {
  const ForeignJob open_mpi = job_of({{"OMPI_COMM_WORLD_RANK", "2"},
                                      {"OMPI_COMM_WORLD_SIZE", "3"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                      {"PMIX_NAMESPACE", "4711"}});
  EXPECT_EQ(open_mpi.topology.rank, 2);
  EXPECT_THAT(open_mpi.rendezvous_id, HasSubstr("4711"));
  const ForeignJob slurm = job_of({{"SLURM_PROCID", "1"},
                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                   {"SLURM_LOCALID", "1"},
                                   {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                   {"SLURM_JOB_ID", "17"},
                                   {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(slurm.topology.size, 2);
  EXPECT_THAT(slurm.rendezvous_id, HasSubstr("SLURM_JOB_ID=17"));
}

TEST(ForeignLauncher, ASocketToTheLauncherIdentifiesAJobOfMpich) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const Descriptor worker_end(ends[0]);
  const Descriptor launcher_end(ends[1]);
  const ForeignJob job =
      job_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_FD", std::to_string(worker_end.get())}});
  EXPECT_THAT(job.rendezvous_id, HasSubstr("process=" + std::to_string(::getpid())));
  EXPECT_EQ(job.topology.local_size, 2);
}

TEST(ForeignLauncher, LeftOverVariablesAreNotAJob) {
  EXPECT_FALSE(find({})->has_value());
  EXPECT_FALSE(find({{"WORLD_SIZE", "4"}})->has_value());
  EXPECT_FALSE(find({{"RANK", ""}, {"WORLD_SIZE", "4"}})->has_value());
  EXPECT_FALSE(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})->has_value()) << "in sbatch";
  const ForeignJob alone = job_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(alone.topology.size, 1);
  EXPECT_EQ(alone.rendezvous_id, "");
}

TEST(ForeignLauncher, InvalidNumbersAreAnError) {
  EXPECT_EQ(error_of(with(kTorchrun, "RANK", "one")),
            "RANK is \"one\", which is not what torchrun sets; correct it or unset it");
  EXPECT_THAT(error_of(with(kTorchrun, "RANK", "4")),
              HasSubstr("RANK=4 and WORLD_SIZE=4: there is no such rank"));
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "RANK and WORLD_SIZE are set, as by torchrun, but no variable that distinguishes this "
            "job from other jobs (one of MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, "
            "TORCHELASTIC_RESTART_COUNT): start the job with `farandole run`, or unset both to run "
            "alone");
  EXPECT_THAT(error_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_FD", "7000"}}),
              HasSubstr("PMI_FD"));
}

TEST(ForeignLauncher, SeveralHostsNeedASecret) {
  EXPECT_EQ(error_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "2")),
            "torchrun has started rank 1 of 4, and not all ranks are on this host. Over several "
            "hosts, the ranks need a secret: make a file with `farandole secret FILE`, which all "
            "hosts can read, and set FARANDOLE_SECRET=FILE for all ranks; or start all ranks on "
            "one host");
}

// A job that a launcher has started on several hosts, and what we should find.
struct JobOnHosts {
  std::string name;
  Variables variables;
  int rank;
  int size;
  int local_rank;
  int local_size;
  std::string job_store;
};

void PrintTo(const JobOnHosts& job, std::ostream* stream) { *stream << job.name; }

class JobOnHostsTest : public ::testing::TestWithParam<JobOnHosts> {};

TEST_P(JobOnHostsTest, IsFoundWithItsTopologyAndStore) {
  const JobOnHosts& expected = GetParam();
  const ForeignJob job = job_of(with(expected.variables, "FARANDOLE_SECRET", "job.secret"));
  EXPECT_TRUE(job.is_on_several_hosts);
  EXPECT_EQ(job.topology.rank, expected.rank);
  EXPECT_EQ(job.topology.size, expected.size);
  EXPECT_EQ(job.topology.local_rank, expected.local_rank);
  EXPECT_EQ(job.topology.local_size, expected.local_size);
  EXPECT_EQ(job.topology.cross_rank, -1);
  EXPECT_EQ(job.job_store, expected.job_store);
  EXPECT_EQ(job.rendezvous_id.size(), 16U);
  EXPECT_THAT(error_of(expected.variables), HasSubstr("need a secret"));
}

INSTANTIATE_TEST_SUITE_P(
    Launchers, JobOnHostsTest,
    ::testing::Values(JobOnHosts{"torchrun", with(kTorchrun, "LOCAL_WORLD_SIZE", "2"), 1, 4, 1, 2,
                                 "localhost:24500"},
                      JobOnHosts{"OpenMpi",
                                 {{"OMPI_COMM_WORLD_RANK", "2"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                  {"PMIX_SERVER_TMPDIR", "/tmp/of-this-host"}},
                                 2,
                                 4,
                                 0,
                                 2,
                                 ""},
                      JobOnHosts{"Mpich",
                                 {{"PMI_RANK", "2"},
                                  {"PMI_SIZE", "4"},
                                  {"MPI_LOCALRANKID", "0"},
                                  {"MPI_LOCALNRANKS", "2"},
                                  {"PMI_FD", "9"}},
                                 2,
                                 4,
                                 0,
                                 2,
                                 ""},
                      JobOnHosts{"jsrun",
                                 {{"JSM_NAMESPACE_RANK", "3"},
                                  {"JSM_NAMESPACE_SIZE", "4"},
                                  {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                                  {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                                  {"LSB_JOBID", "12"}},
                                 3,
                                 4,
                                 1,
                                 2,
                                 ""},
                      JobOnHosts{"Flux",
                                 {{"FLUX_TASK_RANK", "3"},
                                  {"FLUX_JOB_SIZE", "4"},
                                  {"FLUX_TASK_LOCAL_ID", "1"},
                                  {"FLUX_JOB_NNODES", "2"},
                                  {"FLUX_JOB_ID", "f12"}},
                                 3,
                                 4,
                                 1,
                                 -1,
                                 ""},
                      // srun gives the numbers of all hosts, in a list.
                      JobOnHosts{"srun",
                                 {{"SLURM_PROCID", "3"},
                                  {"SLURM_STEP_NUM_TASKS", "4"},
                                  {"SLURM_LOCALID", "0"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "3,1"},
                                  {"SLURM_STEP_NUM_NODES", "2"},
                                  {"SLURM_STEP_NODELIST", "tux[1-2]"},
                                  {"SLURM_JOB_ID", "17"},
                                  {"SLURM_STEP_ID", "0"}},
                                 3,
                                 4,
                                 0,
                                 -1,
                                 "tux1:20527"},
                      // With --mpi=pmi2, srun also sets the variables of MPICH.
                      JobOnHosts{"srunWithPmi",
                                 {{"PMI_RANK", "3"},
                                  {"PMI_SIZE", "4"},
                                  {"SLURM_PROCID", "3"},
                                  {"SLURM_STEP_NUM_TASKS", "4"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}},
                                 3,
                                 4,
                                 1,
                                 -1,
                                 ""}),
    [](const auto& job) { return job.param.name; });

TEST(ForeignLauncher, ARestartOnSeveralHostsIsADifferentJob) {
  const Variables first =
      with(with(kTorchrun, "LOCAL_WORLD_SIZE", "2"), "FARANDOLE_SECRET", "job.secret");
  const ForeignJob restarted_job = job_of(with(first, "TORCHELASTIC_RESTART_COUNT", "1"));
  EXPECT_NE(job_of(first).rendezvous_id, restarted_job.rendezvous_id);
  EXPECT_EQ(restarted_job.job_store, "localhost:24501");
}

TEST(ForeignLauncher, WithoutLocalNumbersASecretMeansSeveralHosts) {
  const Variables by_hand = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "hen"}, {"TORCHELASTIC_RUN_ID", "7"}};
  EXPECT_FALSE(job_of(by_hand).is_on_several_hosts);
  EXPECT_EQ(job_of(by_hand).topology.local_size, 2);
  const ForeignJob job = job_of(with(by_hand, "FARANDOLE_SECRET", "job.secret"));
  EXPECT_TRUE(job.is_on_several_hosts);
  EXPECT_EQ(job.topology.local_size, -1);
  EXPECT_THAT(error_of(with(by_hand, "FARANDOLE_JOB_STORE", "hen:4711")),
              HasSubstr("the ranks need a secret"));
  // On one host, a secret changes nothing.
  EXPECT_FALSE(job_of(with(kTorchrun, "FARANDOLE_SECRET", "job.secret")).is_on_several_hosts);
}

TEST(ForeignLauncher, EachStartOnSeveralHostsNeedsANewId) {
  const Variables on_hosts =
      with(with(kTorchrun, "LOCAL_WORLD_SIZE", "2"), "FARANDOLE_SECRET", "job.secret");
  for (const std::string id : {"none", ""})
    EXPECT_THAT(
        error_of(with(on_hosts, "TORCHELASTIC_RUN_ID", id)),
        HasSubstr("give torchrun `--rdzv-id ID` on each host, with a new ID for each start"));
  EXPECT_NE(job_of(on_hosts).rendezvous_id,
            job_of(with(on_hosts, "TORCHELASTIC_RUN_ID", "8")).rendezvous_id);
  EXPECT_EQ(job_of(with(kTorchrun, "TORCHELASTIC_RUN_ID", "none")).topology.size, 4);
}

TEST(ForeignLauncher, VariablesMustNotContradictEachOther) {
  Variables slurm = {{"SLURM_PROCID", "1"},
                     {"SLURM_STEP_NUM_TASKS", "4"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                     {"SLURM_STEP_NUM_NODES", "1"},
                     {"SLURM_JOB_ID", "17"}};
  EXPECT_EQ(error_of(slurm),
            "SLURM_STEP_NUM_NODES says that the 4 ranks are on 1 host, but "
            "SLURM_STEP_TASKS_PER_NODE says that 2 of them are on one host; correct one of the "
            "variables, or unset both");
  slurm["SLURM_STEP_NUM_NODES"] = "2";
  slurm["SLURM_STEP_TASKS_PER_NODE"] = "4";
  EXPECT_THAT(error_of(slurm), HasSubstr("are on 2 hosts, but"));
}

}  // namespace
}  // namespace farandole
