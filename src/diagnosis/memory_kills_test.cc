#include "diagnosis/memory_kills.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace farandole {
namespace {

std::optional<std::string> file_for(const std::string& groups, const std::string& mounts) {
  std::istringstream group_lines(groups);
  std::istringstream mount_lines(mounts);
  return memory_counter_file(group_lines, mount_lines);
}

TEST(MemoryKills, FindsTheCounterOfCgroupV1) {
  EXPECT_EQ(file_for("9:name=systemd:/\n4:cpu,memory:/jobs/a:b\n0::/unified\n",
                     "25 1 0:2 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
                     "30 25 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"),
            "/sys/fs/cgroup/memory/jobs/a:b/memory.oom_control");
}

TEST(MemoryKills, FindsTheCounterOfCgroupV2) {
  EXPECT_EQ(file_for("0::/user.slice/job\n",
                     "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
            "/sys/fs/cgroup/user.slice/job/memory.events");
}

TEST(MemoryKills, FindsTheCounterIfAContainerMountsASubtree) {
  EXPECT_EQ(file_for("4:memory:/docker/77/inner\n",
                     "30 25 0:26 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            "/sys/fs/cgroup/memory/inner/memory.oom_control");
}

TEST(MemoryKills, AnInvisibleCgroupHasNoFile) {
  EXPECT_EQ(file_for("", ""), std::nullopt);
  EXPECT_EQ(file_for("0::/job\n", "30 25 0:26 / /proc rw - proc proc rw\n"), std::nullopt);
  EXPECT_EQ(file_for("nonsense\n", "nonsense - \n"), std::nullopt);
}

TEST(MemoryKills, CountsNoKillsAtFirst) {
  const MemoryKillCounter counter(own_memory_counter_file());
  EXPECT_EQ(counter.recent_kills().in_cgroup, 0);
}

TEST(MemoryKills, OnlyRecentKillsCount) {
  const std::string file = ::testing::TempDir() + "memory.events." + std::to_string(::getpid());
  const auto write_kills = [&](int count) {
    std::ofstream(file) << "oom 9\noom_kill " << count << "\n";
  };
  write_kills(5);
  MemoryKillCounter counter(file);
  EXPECT_EQ(counter.recent_kills().in_cgroup, 0);
  write_kills(7);
  EXPECT_EQ(counter.recent_kills().in_cgroup, 2);
  counter.sample();  // between the kill and the end of the process
  EXPECT_EQ(counter.recent_kills().in_cgroup, 2);
  counter.sample();
  EXPECT_EQ(counter.recent_kills().in_cgroup, 0);
  write_kills(8);
  EXPECT_EQ(counter.recent_kills().in_cgroup, 1);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace farandole
