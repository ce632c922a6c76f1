#include "workers/core_binding.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "base/cores.h"
#include "base/format.h"

namespace farandole {
namespace {

// Successive cores in the list of all cores. Two parts of a division are disjoint or equal.
struct CoreRange {
  int first = 0;
  int count = 0;
};

std::vector<CoreRange> sockets_of(const std::vector<Core>& cores) {
  std::vector<CoreRange> sockets(static_cast<std::size_t>(count_sockets(cores)));
  for (std::size_t i = 0; i < cores.size(); ++i) {
    CoreRange& socket = sockets[static_cast<std::size_t>(cores[i].socket)];
    if (socket.count++ == 0) socket.first = static_cast<int>(i);
  }
  return sockets;
}

// Returns how many parts of `size` cores there can be if each part must lie within one socket.
int count_parts(const std::vector<CoreRange>& sockets, int size) {
  int parts = 0;
  for (const CoreRange& socket : sockets) parts += socket.count / size;
  return parts;
}

std::vector<CoreRange> parts_within_sockets(const std::vector<CoreRange>& sockets, int cores,
                                            int workers) {
  int part_size = cores / workers;
  while (count_parts(sockets, part_size) < workers) --part_size;
  std::vector<CoreRange> parts;
  for (const CoreRange& socket : sockets)
    for (int used_cores = 0; used_cores + part_size <= socket.count; used_cores += part_size)
      parts.push_back({socket.first + used_cores, part_size});
  parts.resize(static_cast<std::size_t>(workers));
  return parts;
}

std::vector<CoreRange> parts_of_whole_sockets(const std::vector<CoreRange>& sockets, int workers) {
  const std::size_t size = sockets.size() / static_cast<std::size_t>(workers);
  std::vector<CoreRange> parts(static_cast<std::size_t>(workers));
  for (std::size_t i = 0; i < parts.size() * size; ++i) {
    CoreRange& part = parts[i / size];
    if (part.count == 0) part.first = sockets[i].first;
    part.count += sockets[i].count;
  }
  return parts;
}

std::vector<CoreRange> parts_of_cores(const std::vector<CoreRange>& sockets, int cores,
                                      int workers) {
  if (workers < static_cast<int>(sockets.size())) return parts_of_whole_sockets(sockets, workers);
  if (workers <= cores) return parts_within_sockets(sockets, cores, workers);
  std::vector<CoreRange> parts;
  for (std::int64_t worker = 0; worker < workers; ++worker)
    parts.push_back({static_cast<int>(worker * cores / workers), 1});
  return parts;
}

// Divides the cores into equal parts, one for each worker. Each worker gets the whole socket that
// has the middle core of its part.
std::vector<CoreRange> parts_of_sockets(const std::vector<CoreRange>& sockets, int cores,
                                        int workers) {
  std::vector<CoreRange> parts;
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    const auto middle =
        static_cast<int>(((2 * worker + 1) * cores - 1) / (2 * std::int64_t{workers}));
    parts.push_back(*std::ranges::find_if(sockets, [middle](const CoreRange& socket) {
      return middle < socket.first + socket.count;
    }));
  }
  return parts;
}

std::vector<CoreRange> divide(const std::vector<Core>& cores, int workers, BindTo bind_to) {
  const auto count = static_cast<int>(cores.size());
  switch (bind_to) {
    case BindTo::kCore:
      return parts_of_cores(sockets_of(cores), count, workers);
    case BindTo::kSocket:
      return parts_of_sockets(sockets_of(cores), count, workers);
    case BindTo::kNone:
      break;
  }
  return std::vector<CoreRange>(static_cast<std::size_t>(workers), CoreRange{0, count});
}

std::vector<int> hardware_threads_of(const std::vector<Core>& cores, const CoreRange& part) {
  std::vector<int> threads;
  for (int i = part.first; i < part.first + part.count; ++i) {
    const auto& core_threads = cores[static_cast<std::size_t>(i)].hardware_threads;
    threads.insert(threads.end(), core_threads.begin(), core_threads.end());
  }
  std::ranges::sort(threads);
  return threads;
}

std::string count_text(std::size_t count, const char* noun) {
  return format_text("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

Result<BindTo> parse_bind_to(const std::string& word) {
  constexpr std::array<std::pair<std::string_view, BindTo>, 3> kWords{
      {{"core", BindTo::kCore}, {"socket", BindTo::kSocket}, {"none", BindTo::kNone}}};
  for (const auto& [name, value] : kWords)
    if (word == name) return value;
  return Status::fix_call(
      format_text("--bind-to \"{}\" is not a part of a machine; give core, socket or none", word));
}

CoreDivision divide_cores(const std::vector<Core>& cores, std::optional<int> quota, int workers,
                          BindTo bind_to) {
  const auto count = static_cast<int>(cores.size());
  CoreDivision division{.bind_to = bind_to,
                        .cores = std::max(1, std::min(count, quota.value_or(count))),
                        .workers = {}};
  // If the kernel did not report the cores that we may use, no worker can be bound.
  if (cores.empty()) division.bind_to = BindTo::kNone;
  const std::vector<CoreRange> parts = divide(cores, workers, division.bind_to);
  std::map<int, int> workers_of_part;  // the key is the first core of the part
  for (const CoreRange& part : parts) ++workers_of_part[part.first];
  for (const CoreRange& part : parts) {
    const int share = part.count / workers_of_part[part.first];
    WorkerCores& worker = division.workers.emplace_back();
    worker.threads = std::max(1, quota ? std::min(share, *quota / workers) : share);
    if (division.bind_to != BindTo::kNone)
      worker.hardware_threads = hardware_threads_of(cores, part);
  }
  return division;
}

std::string describe(const CoreDivision& division) {
  const auto& workers = division.workers;
  std::string text = format_text("{} on {}", workers.size(),
                                 count_text(static_cast<std::size_t>(division.cores), "core"));
  if (division.bind_to == BindTo::kNone) return text;
  if (division.bind_to == BindTo::kSocket) return text.append(", each bound to one socket");
  const bool is_shared =
      std::ranges::adjacent_find(workers, {}, &WorkerCores::hardware_threads) != workers.end();
  return text.append(is_shared             ? ", each bound to one of them"
                     : workers.size() == 1 ? ", bound to them"
                                           : ", each bound to cores of its own");
}

std::string binding_preview(const std::vector<Core>& cores) {
  const auto two_workers = divide_cores(cores, std::nullopt, 2, BindTo::kCore).workers;
  std::size_t threads = 0;
  for (const Core& core : cores) threads += core.hardware_threads.size();
  const auto sockets = static_cast<std::size_t>(count_sockets(cores));
  return format_text("{}, {}, {}; --bind-to core would give {} to one worker and {} to another",
                     count_text(sockets, "socket"), count_text(cores.size(), "core"),
                     count_text(threads, "hardware thread"),
                     list_text(two_workers.front().hardware_threads),
                     list_text(two_workers.back().hardware_threads));
}

std::string threads_text(const CoreDivision& division) {
  const auto [fewest, most] =
      std::ranges::minmax_element(division.workers, {}, &WorkerCores::threads);
  return fewest->threads == most->threads ? std::to_string(fewest->threads)
                                          : format_text("{} to {}", fewest->threads, most->threads);
}

}  // namespace farandole
