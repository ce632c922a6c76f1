#include "environment/cluster_variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace farandole {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<std::optional<ClusterTask>> cluster_task(const Variables& variables) {
  return find_cluster_task([&](const char* name) -> const char* {
    const auto variable = variables.find(name);
    return variable == variables.end() ? nullptr : variable->second.c_str();
  });
}

// "scheduler node/nodes at first_host", or "none", or the error.
std::string task_text(const Variables& variables) {
  const auto task = cluster_task(variables);
  if (!task.ok()) return task.status().message();
  if (!*task) return "none";
  return std::string((*task)->scheduler) + " " + std::to_string((*task)->node) + "/" +
         std::to_string((*task)->nodes) + " at " + (*task)->first_host;
}

TEST(ClusterVariables, DescribeATaskOfSageMaker) {
  const std::string hosts = R"(["algo-1","algo-2"])";
  EXPECT_EQ(task_text({{"SM_HOSTS", hosts}, {"SM_CURRENT_HOST", "algo-1"}}),
            "SageMaker 0/2 at algo-1");
  EXPECT_EQ(task_text({{"SM_HOSTS", hosts}, {"SM_CURRENT_HOST", "algo-2"}}),
            "SageMaker 1/2 at algo-1");
  EXPECT_EQ(task_text({{"SM_HOSTS", hosts}}), "none");
  EXPECT_THAT(task_text({{"SM_HOSTS", hosts}, {"SM_CURRENT_HOST", "algo-3"}}),
              HasSubstr("SM_CURRENT_HOST is \"algo-3\", but it must have one of the names"));
  for (const char* const wrong : {"algo-1", "[1]", "{}", "[\"\"]"})
    EXPECT_THAT(task_text({{"SM_HOSTS", wrong}, {"SM_CURRENT_HOST", "algo-1"}}),
                HasSubstr("must have a list of host names"))
        << wrong;
}

TEST(ClusterVariables, DescribeATaskOfVertexAi) {
  const auto variables = [](const std::string& type, const std::string& index) {
    return Variables{
        {"CLUSTER_SPEC",
         R"({"cluster":{"workerpool0":["w0:2222"],"workerpool1":["w1:2222","w2:2222"]},)"
         R"("environment":"cloud","task":{"type":")" +
             type + R"(","index":)" + index + "}}"}};
  };
  EXPECT_EQ(task_text(variables("workerpool0", "0")), "Vertex AI 0/3 at w0");
  EXPECT_EQ(task_text(variables("workerpool1", "0")), "Vertex AI 1/3 at w0");
  EXPECT_EQ(task_text(variables("workerpool1", "1")), "Vertex AI 2/3 at w0");
  EXPECT_THAT(task_text(variables("workerpool1", "2")), HasSubstr("a task that is in the cluster"));
}

TEST(ClusterVariables, DescribeATaskOfTensorFlow) {
  const auto variables = [](const std::string& task) {
    return Variables{
        {"TF_CONFIG", R"({"cluster":{"worker":["[fd00::2]:1","c"],"chief":["[fd00::1]:1"],)"
                      R"("ps":["d:1"],"evaluator":["e:1"]},"task":)" +
                          task + "}"}};
  };
  EXPECT_EQ(task_text(variables(R"({"type":"chief","index":0})")), "TF_CONFIG 0/3 at fd00::1");
  EXPECT_EQ(task_text(variables(R"({"type":"worker","index":"1"})")), "TF_CONFIG 2/3 at fd00::1");
  EXPECT_EQ(task_text(variables(R"({"type":"ps","index":0})")), "none");
  for (const char* const wrong :
       {"3", "{}", R"({"type":"worker"})", R"({"type":"worker","index":-1})",
        R"({"type":"worker","index":"x"})", R"({"type":"other","index":0})"})
    EXPECT_THAT(task_text(variables(wrong)), HasSubstr("TF_CONFIG is \"")) << wrong;
  for (const char* const wrong :
       {"x", "[]", R"({"cluster":{"worker":"a"},"task":{"type":"worker","index":0}})"})
    EXPECT_THAT(task_text({{"TF_CONFIG", wrong}}), HasSubstr("a cluster with lists of addresses"))
        << wrong;
}

TEST(ClusterVariables, MayBeMissing) {
  EXPECT_EQ(task_text({}), "none");
  EXPECT_EQ(task_text({{"TF_CONFIG", ""}}), "none");
}

}  // namespace
}  // namespace farandole
