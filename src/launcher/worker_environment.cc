#include "launcher/worker_environment.h"

#include <unistd.h>

#include <algorithm>
#include <map>

namespace farandole {

std::vector<EnvironmentVariable> rank_variables(int rank, int workers,
                                                const WorkerDescriptors& descriptors) {
  const std::string number = std::to_string(rank);
  const std::string count = std::to_string(workers);
  std::vector<EnvironmentVariable> variables{
      {"FARANDOLE_RENDEZVOUS_DESCRIPTOR", std::to_string(descriptors.rendezvous)},
      {"FARANDOLE_FLIGHT_RECORD_DESCRIPTOR", std::to_string(descriptors.flight_record)},
      // Set even if it is −1, so that a job inside a job does not inherit the outer job's channel.
      {"FARANDOLE_CHANNEL_DESCRIPTOR", std::to_string(descriptors.channel)}};
  // Many scripts read Horovod's variables. Setting them also replaces those of an outer job.
  for (const std::string prefix : {"FARANDOLE_", "HOROVOD_"}) {
    variables.emplace_back(prefix + "RANK", number);
    variables.emplace_back(prefix + "SIZE", count);
    variables.emplace_back(prefix + "LOCAL_RANK", number);
    variables.emplace_back(prefix + "LOCAL_SIZE", count);
    variables.emplace_back(prefix + "CROSS_RANK", "0");
    variables.emplace_back(prefix + "CROSS_SIZE", "1");
  }
  return variables;
}

std::vector<EnvironmentVariable> default_variables(int workers, int cores) {
  return {{"OMP_NUM_THREADS", std::to_string(std::max(1, cores / workers))},
          {"PYTHONUNBUFFERED", "1"}};
}

std::vector<std::string> merge_environment(
    const std::vector<std::vector<EnvironmentVariable>>& lists) {
  std::map<std::string, std::string> merged;
  for (const auto& list : lists)
    for (const auto& [name, value] : list) merged[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : merged) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<EnvironmentVariable> inherited_environment() {
  std::vector<EnvironmentVariable> variables;
  for (char** line = ::environ; line != nullptr && *line != nullptr; ++line) {
    const std::string text(*line);
    const auto equals = text.find('=', 1);
    if (equals != std::string::npos)
      variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace farandole
