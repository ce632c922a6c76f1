#include "workers/core_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/cores.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;

// The files of a machine in /sys/devices/system, as the kernel writes them.
class FakeMachine {
 public:
  void add_core(const std::string& package, const std::string& hardware_threads) {
    for (const int thread : numbers_in_list(hardware_threads)) {
      const std::string folder = "cpu/cpu" + std::to_string(thread) + "/topology/";
      files_[folder + "physical_package_id"] = package + "\n";
      files_[folder + "thread_siblings_list"] = hardware_threads + "\n";
    }
  }
  void add_nodes(const std::vector<std::string>& lists) {
    files_["node/online"] = lists.size() == 1 ? "0\n" : "0-" + std::to_string(lists.size() - 1);
    for (std::size_t node = 0; node < lists.size(); ++node)
      files_["node/node" + std::to_string(node) + "/cpulist"] = lists[node] + "\n";
  }
  std::vector<Core> cores(const std::string& usable_threads) const {
    return find_cores(numbers_in_list(usable_threads), [this](const std::string& path) {
      const auto file = files_.find(path.substr(std::string("/sys/devices/system/").size()));
      return file == files_.end() ? std::nullopt : std::optional(file->second);
    });
  }

 private:
  std::map<std::string, std::string> files_;
};

std::vector<std::string> threads_of(const std::vector<Core>& cores) {
  std::vector<std::string> texts;
  for (const Core& core : cores) texts.push_back(list_text(core.hardware_threads));
  return texts;
}

std::vector<int> sockets_of(const std::vector<Core>& cores) {
  std::vector<int> sockets;
  for (const Core& core : cores) sockets.push_back(core.socket);
  return sockets;
}

// As on many servers: the second hardware threads of all cores come last, and the numbers alternate
// between the sockets.
FakeMachine two_sockets() {
  FakeMachine machine;
  machine.add_core("0", "0,4");
  machine.add_core("1", "1,5");
  machine.add_core("0", "2,6");
  machine.add_core("1", "3,7");
  machine.add_nodes({"0,2,4,6", "1,3,5,7"});
  return machine;
}

TEST(CoreTopology, CoresOfASocketAreNeighbours) {
  const auto cores = two_sockets().cores("0-7");
  EXPECT_THAT(threads_of(cores), ElementsAre("0,4", "2,6", "1,5", "3,7"));
  EXPECT_THAT(sockets_of(cores), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(count_sockets(cores), 2);
}

TEST(CoreTopology, OnlyUsableHardwareThreadsCount) {
  const auto cores = two_sockets().cores("1,3-7");
  EXPECT_THAT(threads_of(cores), ElementsAre("4", "6", "1,5", "3,7"));
  EXPECT_THAT(sockets_of(cores), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(sockets_of(two_sockets().cores("3,5,7")), ElementsAre(0, 0));
}

TEST(CoreTopology, NodesOfASocketAreNeighbours) {
  FakeMachine machine;
  for (const int core : {0, 1, 2, 3}) machine.add_core("0", std::to_string(core));
  machine.add_nodes({"0,2", "1,3"});
  const auto cores = machine.cores("0-3");
  EXPECT_THAT(threads_of(cores), ElementsAre("0", "2", "1", "3"));
  EXPECT_THAT(sockets_of(cores), ElementsAre(0, 0, 0, 0));
}

TEST(CoreTopology, AVirtualMachineWithASocketPerCoreHasOneSocketPerNode) {
  FakeMachine machine;
  for (const int core : {0, 1, 2, 3}) machine.add_core(std::to_string(core), std::to_string(core));
  machine.add_nodes({"0-1", "2-3"});
  EXPECT_THAT(sockets_of(machine.cores("0-3")), ElementsAre(0, 0, 1, 1));
}

TEST(CoreTopology, WithoutNodesTheSocketsAreThoseOfTheProcessor) {
  FakeMachine machine;
  machine.add_core("0", "0");
  machine.add_core("1", "1");
  EXPECT_THAT(sockets_of(machine.cores("0-1")), ElementsAre(0, 1));
}

TEST(CoreTopology, WithoutFilesEachHardwareThreadIsACore) {
  EXPECT_THAT(threads_of(FakeMachine().cores("2-4")), ElementsAre("2", "3", "4"));
  EXPECT_THAT(sockets_of(FakeMachine().cores("2-4")), ElementsAre(0, 0, 0));
  FakeMachine machine;
  machine.add_core("-1", "0-1");  // the socket number on some virtual machines
  EXPECT_THAT(threads_of(machine.cores("0-1")), ElementsAre("0-1"));
  EXPECT_EQ(count_sockets({}), 0);
}

TEST(CoreTopology, OwnCoresHaveAllUsableHardwareThreads) {
  std::vector<int> threads;
  for (const Core& core : own_cores())
    threads.insert(threads.end(), core.hardware_threads.begin(), core.hardware_threads.end());
  EXPECT_THAT(threads, ::testing::UnorderedElementsAreArray(usable_hardware_threads()));
}

}  // namespace
}  // namespace farandole
