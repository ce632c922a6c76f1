#include "workers/worker_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "environment/foreign_launcher.h"

namespace farandole {
namespace {

// The largest block that the C library keeps by default (mallopt(3), M_MMAP_THRESHOLD).
constexpr std::size_t kDefaultKeptBytes = std::size_t{32} << 20;

// Since glibc 2.35, the threshold may be above 32 MiB, and malloc can use huge pages.
bool c_library_keeps_large_blocks() {
  std::array<char, 64> version{};
  int major = 0;
  int minor = 0;
  return ::confstr(_CS_GNU_LIBC_VERSION, version.data(), version.size()) > 0 &&
         std::sscanf(version.data(), "glibc %d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(2, 35);
}

}  // namespace

std::vector<EnvironmentVariable> rank_variables(const NodeLayout& layout, int local_rank,
                                                const WorkerDescriptors& descriptors,
                                                const RendezvousAddresses& addresses) {
  // These variables are set even if their value is empty or −1. Otherwise, a job inside a job would
  // inherit the channel, the Store and the secret of the outer job.
  std::vector<EnvironmentVariable> variables{
      {"FARANDOLE_RENDEZVOUS_DESCRIPTOR", std::to_string(descriptors.rendezvous)},
      {"FARANDOLE_FLIGHT_RECORD_DESCRIPTOR", std::to_string(descriptors.flight_record)},
      {"FARANDOLE_CHANNEL_DESCRIPTOR", std::to_string(descriptors.channel)},
      {"FARANDOLE_LAUNCHER_DESCRIPTOR", std::to_string(descriptors.launcher)},
      {"FARANDOLE_SECRET_DESCRIPTOR", std::to_string(descriptors.secret)},
      {"FARANDOLE_JOB_STORE", addresses.job_store}};
  // Many scripts read Horovod's variables. Setting them also replaces those of an outer job.
  for (const std::string prefix : {"FARANDOLE_", "HOROVOD_"}) {
    const auto add_number = [&](const char* name, int number) {
      variables.emplace_back(prefix + name, std::to_string(number));
    };
    add_number("RANK", layout.rank_of(local_rank));
    add_number("SIZE", layout.size());
    add_number("LOCAL_RANK", local_rank);
    add_number("LOCAL_SIZE", layout.local_size());
    add_number("CROSS_RANK", layout.cross_rank(local_rank));
    add_number("CROSS_SIZE", layout.cross_size(local_rank));
  }
  return variables;
}

std::vector<EnvironmentVariable> torchrun_variables(const NodeLayout& layout, int local_rank,
                                                    const RendezvousAddresses& addresses) {
  const int port = addresses.master_port;
  return {
      {"RANK", std::to_string(layout.rank_of(local_rank))},
      {"WORLD_SIZE", std::to_string(layout.size())},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(layout.local_size())},
      {"GROUP_RANK", std::to_string(layout.node)},  // torchrun's name for the number of the node
      {"MASTER_ADDR", addresses.master_address},
      {"MASTER_PORT", port == 0 ? "" : std::to_string(port)},
      // Libraries that know torchrun, such as Lightning, look for this variable.
      {kTorchrunJobVariable, kOwnTorchrunJob}};
}

std::vector<EnvironmentVariable> default_variables(int threads) {
  return {{kThreadsVariable, std::to_string(threads)}, {"PYTHONUNBUFFERED", "1"}};
}

std::optional<EnvironmentVariable> kept_memory_variable(
    std::size_t kept_bytes, const std::vector<EnvironmentVariable>& given_variables) {
  if (kept_bytes <= kDefaultKeptBytes || !c_library_keeps_large_blocks()) return std::nullopt;
  for (const auto& [name, value] : given_variables)
    if (name == "GLIBC_TUNABLES" || name.starts_with("MALLOC_")) return std::nullopt;
  const std::string bytes = std::to_string(kept_bytes);
  return EnvironmentVariable("GLIBC_TUNABLES",
                             "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=" + bytes +
                                 ":glibc.malloc.trim_threshold=" + bytes);
}

bool is_variable_name(std::string_view name) {
  const auto is_allowed = [](char letter) {
    return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') || letter == '_' ||
           (letter >= '0' && letter <= '9');
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::ranges::all_of(name, is_allowed);
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
    const auto equals_sign = text.find('=', 1);
    // Leave out the variables of a torchrun that has started us. If the workers inherited, for
    // example, TORCHELASTIC_USE_AGENT_STORE, rank 0 would wait at our port for the store of that
    // torchrun.
    if (equals_sign != std::string::npos && !text.starts_with("TORCHELASTIC_"))
      variables.emplace_back(text.substr(0, equals_sign), text.substr(equals_sign + 1));
  }
  return variables;
}

}  // namespace farandole
