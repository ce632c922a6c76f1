#include "driver/passed_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

using ::testing::ElementsAre;

TEST(PassedEnvironment, HasWhatIsAboutTheProgram) {
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "FARANDOLE_TIMELINE",
                           "HOROVOD_TIMELINE", "OMP_NUM_THREADS", "NCCL_DEBUG", "TORCH_HOME",
                           "TF_CPP_MIN_LOG_LEVEL", "XLA_FLAGS", "LC_ALL", "LANG", "HF_HOME"})
    EXPECT_TRUE(is_passed_on(name)) << name;
}

TEST(PassedEnvironment, LeavesOutWhatIsAboutTheHostOrTheUser) {
  for (const char* name :
       {"HOME", "USER", "PWD", "HOSTNAME", "DISPLAY", "SSH_AUTH_SOCK", "SSH_CONNECTION", "TERM",
        "TMPDIR", "XDG_RUNTIME_DIR", "AWS_SECRET_ACCESS_KEY", "SLURM_PROCID", "path", "", "PATHS"})
    EXPECT_FALSE(is_passed_on(name)) << name;
}

TEST(PassedEnvironment, KeepsValuesAsTheyAre) {
  EXPECT_THAT(passed_environment({"HOME=/root", "PATH=a=b", "PYTHONPATH=", "PATH"}),
              ElementsAre("PATH=a=b", "PYTHONPATH="));
}

}  // namespace
}  // namespace farandole
