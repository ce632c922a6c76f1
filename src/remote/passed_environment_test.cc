#include "remote/passed_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace farandole {
namespace {

using ::testing::ElementsAre;

TEST(PassedEnvironment, HasTheVariablesThatAProgramMayRead) {
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "FARANDOLE_TIMELINE",
                           "OMP_NUM_THREADS", "NCCL_DEBUG", "STEPS", "foo", "LANG", "HF_HOME",
                           "HOMES", "PATHS", "http_proxy", "CUDA_VISIBLE_DEVICES"})
    EXPECT_TRUE(is_passed_on(name)) << name;
}

TEST(PassedEnvironment, LeavesOutTheHostTheSessionAndSchedulers) {
  for (const char* name :
       {"HOME", "USER", "PWD", "HOSTNAME", "DISPLAY", "SSH_AUTH_SOCK", "SSH_CONNECTION", "TERM",
        "TMPDIR", "XDG_RUNTIME_DIR", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
        "JOB_COMPLETION_INDEX", "KUBERNETES_PORT", "BASH_FUNC_module%%", "", "_"})
    EXPECT_FALSE(is_passed_on(name)) << name;
}

TEST(PassedEnvironment, KeepsValuesAsTheyAre) {
  EXPECT_THAT(passed_environment({"HOME=/root", "PATH=a=b", "PYTHONPATH=", "PATH"}),
              ElementsAre("PATH=a=b", "PYTHONPATH="));
}

TEST(PassedEnvironment, IsSetUnchanged) {
  set_environment({"FARANDOLE_IN_TEST=a=b", "no variable"});
  const char* value = std::getenv("FARANDOLE_IN_TEST");
  ASSERT_NE(value, nullptr);
  EXPECT_STREQ(value, "a=b");
  ::unsetenv("FARANDOLE_IN_TEST");
}

}  // namespace
}  // namespace farandole
