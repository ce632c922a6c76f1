#include "environment/cluster_variables.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 3> kTypesOfFirstProcess{"chief", "master", "workerpool0"};
// The names of the further pools, workerpool1, workerpool2 and so on, also begin with this text.
constexpr std::string_view kWorkerPrefix = "worker";

struct ClusterVariable {
  const char* name;
  std::string_view scheduler;
};
constexpr std::array<ClusterVariable, 2> kClusterVariables{
    {{"CLUSTER_SPEC", "Vertex AI"}, {"TF_CONFIG", kTfConfig}}};

Status wrong_value_error(std::string_view variable, std::string_view text,
                         std::string_view expected) {
  return Status::fix_call(format_text("{} is \"{}\", but it must have {}; correct it or unset it",
                                      variable, escape_controls(std::string(text)), expected));
}

bool is_first_type(std::string_view type) {
  return std::ranges::count(kTypesOfFirstProcess, type) > 0;
}

// Returns the types of the processes that get a number, in the order of these numbers. Parameter
// servers and evaluators get none. The JSON parser sorts the names of an object, so workerpool2
// follows workerpool1.
std::vector<std::string> numbered_types(const Json& cluster) {
  std::vector<std::string> types;
  for (const bool is_first : {true, false})
    for (const auto& [type, hosts] : cluster.items())
      if (is_first_type(type) == is_first && (is_first || type.starts_with(kWorkerPrefix)))
        types.push_back(type);
  return types;
}

bool is_list_of_strings(const Json& value) {
  return value.is_array() && std::ranges::all_of(value, [](const Json& item) {
           return item.is_string() && !item.get_ref<const std::string&>().empty();
         });
}

// Returns "fd00::1" for "[fd00::1]:2222", and "hen" for "hen:2222" or "hen".
std::string without_port(std::string address) {
  const auto colon = address.rfind(':');
  const bool is_bracketed = address.front() == '[';
  if (colon != std::string::npos && (is_bracketed || address.find(':') == colon))
    address.resize(colon);
  if (is_bracketed && address.back() == ']') address = address.substr(1, address.size() - 2);
  return address;
}

bool has_cluster_and_task(const Json& value) {
  if (!value.is_object() || !value.contains("cluster") || !value.contains("task")) return false;
  const Json& task = value["task"];
  const Json& cluster = value["cluster"];
  return cluster.is_object() && std::ranges::all_of(cluster, is_list_of_strings) &&
         task.is_object() && task.contains("type") && task["type"].is_string() &&
         task.contains("index");
}

// The index may be a number or a text, as in TensorFlow.
std::optional<std::size_t> index_of(const Json& index) {
  if (index.is_number_unsigned()) return index.get<std::size_t>();
  if (!index.is_string()) return std::nullopt;
  const auto& text = index.get_ref<const std::string&>();
  const bool is_number = !text.empty() && text.size() < 8 &&
                         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? std::optional<std::size_t>(std::stoul(text)) : std::nullopt;
}

Result<std::optional<ClusterTask>> task_in_cluster(const ClusterVariable& variable,
                                                   std::string_view text) {
  const Json value = Json::parse(text, nullptr, false);
  if (!has_cluster_and_task(value)) {
    return wrong_value_error(
        variable.name, text,
        "a cluster with lists of addresses, and a task with its type and index");
  }
  const std::string type = value["task"]["type"];
  const auto index = index_of(value["task"]["index"]);
  const Json& cluster = value["cluster"];
  if (!index || !cluster.contains(type) || *index >= cluster[type].size())
    return wrong_value_error(variable.name, text, "a task that is in the cluster");
  ClusterTask task{.scheduler = variable.scheduler};
  std::vector<std::string> addresses;
  bool is_numbered = false;
  for (const std::string& cluster_type : numbered_types(cluster)) {
    if (cluster_type == type) {
      task.node = static_cast<int>(addresses.size() + *index);
      is_numbered = true;
    }
    for (const Json& address : cluster[cluster_type]) addresses.push_back(address);
  }
  if (!is_numbered) return std::optional<ClusterTask>();
  task.nodes = static_cast<int>(addresses.size());
  task.first_host = without_port(addresses.front());
  return std::optional(std::move(task));
}

Result<std::optional<ClusterTask>> task_of_sagemaker(std::string_view hosts,
                                                     std::string_view current_host) {
  const Json value = Json::parse(hosts, nullptr, false);
  if (!is_list_of_strings(value))
    return wrong_value_error("SM_HOSTS", hosts, "a list of host names");
  const auto position = std::ranges::find(value, Json(current_host));
  if (position == value.end())
    return wrong_value_error("SM_CURRENT_HOST", current_host, "one of the names in SM_HOSTS");
  return std::optional(ClusterTask{.scheduler = "SageMaker",
                                   .node = static_cast<int>(position - value.begin()),
                                   .nodes = static_cast<int>(value.size()),
                                   .first_host = value.front()});
}

}  // namespace

Result<std::optional<ClusterTask>> find_cluster_task(const Environment& environment) {
  const std::string_view hosts = variable_text(environment, "SM_HOSTS");
  const std::string_view current_host = variable_text(environment, "SM_CURRENT_HOST");
  if (!hosts.empty() && !current_host.empty()) return task_of_sagemaker(hosts, current_host);
  for (const ClusterVariable& variable : kClusterVariables)
    if (const auto text = variable_text(environment, variable.name); !text.empty())
      return task_in_cluster(variable, text);
  return std::optional<ClusterTask>();
}

}  // namespace farandole
