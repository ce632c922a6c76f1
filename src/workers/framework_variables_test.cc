#include "workers/framework_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

const NodeLayout kSecondNode{.node = 1, .workers = {2, 1}};

TEST(FrameworkVariables, AreEmptyWithoutAFlag) {
  EXPECT_THAT(*framework_variables(kSecondNode, 0, {}), IsEmpty());
  EXPECT_THAT(addresses_by_rank(kSecondNode, {}, {}), IsEmpty());
}

TEST(FrameworkVariables, AddressesAreInTheOrderOfRanks) {
  EXPECT_THAT(addresses_by_rank(kSecondNode, {"fox", "fd00::2"}, {5, 6, 7}),
              ElementsAre("fox:5", "fox:6", "[fd00::2]:7"));
}

TEST(FrameworkVariables, TensorFlowFindsAllWorkers) {
  const FrameworkAddresses addresses{.tensorflow = {"fox:5", "fox:6", "[fd00::2]:7"}};
  EXPECT_THAT(
      *framework_variables(kSecondNode, 0, addresses),
      ElementsAre(Pair("TF_CONFIG", R"({"cluster": {"worker": ["fox:5", "fox:6", "[fd00::2]:7"]}, )"
                                    R"("task": {"type": "worker", "index": 2}})")));
}

TEST(FrameworkVariables, JaxFindsItsCoordinator) {
  EXPECT_THAT(
      *framework_variables(kSecondNode, 0, {.jax = "fox:8"}),
      UnorderedElementsAre(Pair("JAX_COORDINATOR_ADDRESS", "fox:8"), Pair("JAX_NUM_PROCESSES", "3"),
                           Pair("JAX_PROCESS_ID", "2"),
                           Pair("OMPI_MCA_orte_hnp_uri", "started-by-farandole-run"),
                           Pair("OMPI_COMM_WORLD_SIZE", "3"), Pair("OMPI_COMM_WORLD_RANK", "2"),
                           Pair("OMPI_COMM_WORLD_LOCAL_RANK", "0")));
}

// Linux takes 131,071 bytes, and the final zero.
TEST(FrameworkVariables, ATooLongVariableIsAnError) {
  FrameworkAddresses addresses{.tensorflow = {"fox:5", ""}};
  const auto variable_bytes_with = [&addresses](std::size_t bytes) {
    addresses.tensorflow.back() = std::string(bytes, 'x');
    const auto variables = framework_variables({.node = 0, .workers = {2}}, 1, addresses);
    return variables.ok() ? variables->front().first.size() + 1 + variables->front().second.size()
                          : 0;
  };
  const std::size_t other_bytes = variable_bytes_with(1) - 1;
  EXPECT_EQ(variable_bytes_with(131071 - other_bytes), 131071U);
  EXPECT_EQ(variable_bytes_with(131072 - other_bytes), 0U);
  EXPECT_EQ(framework_variables({.node = 0, .workers = {2}}, 1, addresses).status(),
            Status::stop("--tf-config: TF_CONFIG for 2 workers has 131072 bytes, but an "
                         "environment variable can have at most 131071; start fewer workers"));
}

TEST(FrameworkVariables, EachVariableHasTheFlagThatSetsIt) {
  EXPECT_EQ(flag_that_sets("TF_CONFIG", {.tf_config = true}), "--tf-config");
  EXPECT_EQ(flag_that_sets("TF_CONFIG", {.jax = true}), "");
  EXPECT_EQ(flag_that_sets("JAX_COORDINATOR_ADDRESS", {.jax = true}), "--jax");
  EXPECT_EQ(flag_that_sets("OMPI_COMM_WORLD_RANK", {.jax = true}), "--jax");
  EXPECT_EQ(flag_that_sets("OMPI_COMM_WORLD_RANK", {.tf_config = true}), "");
  EXPECT_EQ(flag_that_sets("PATH", {.tf_config = true, .jax = true}), "");
}

}  // namespace
}  // namespace farandole
