#include "engine/assemble.h"

#include <fmt/format.h>

#include <utility>

#include "base/cores.h"
#include "base/try.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/store_client.h"

namespace farandole {
namespace {

Status check_place(const EngineOptions& options) {
  const Place& place = options.place;
  if (place.size < 1 || place.rank < 0 || place.rank >= place.size)
    return Status::fix_call(fmt::format(
        "rank {} does not lie in a job of size {}; FARANDOLE_RANK and FARANDOLE_SIZE are set by "
        "`farandole run`",
        place.rank, place.size));
  if (place.local_size < 1 || place.local_rank < 0 || place.local_rank >= place.local_size)
    return Status::fix_call(fmt::format(
        "local rank {} does not lie in a host's share of {} ranks; FARANDOLE_LOCAL_RANK and "
        "FARANDOLE_LOCAL_SIZE are set by `farandole run`",
        place.local_rank, place.local_size));
  if (place.size > 1 && options.rendezvous_descriptor < 0)
    return Status::fix_call(fmt::format(
        "a job of size {} needs a launcher: start it with `farandole run -n {} …` (there is no "
        "FARANDOLE_RENDEZVOUS_DESCRIPTOR here)",
        place.size, place.size));
  return {};
}

std::vector<Watch::Process> watched(const Formation& formation) {
  const std::int64_t own_pid = ::getpid();
  std::vector<Watch::Process> processes;
  for (const Peer& peer : formation.peers)
    if (peer.pid != own_pid) processes.push_back({peer.rank, peer.process.get()});
  return processes;
}

Result<std::unique_ptr<Loop>> make_loop(const Engine::Parts& parts) {
  const Formation& formation = parts.formation;
  std::vector<std::unique_ptr<GroupMember>> members;
  for (const FormedGroup& group : formation.groups) {
    FARANDOLE_TRY_ASSIGN(auto staging, formation.heap->allocate(kStagingBytes));
    members.push_back(std::make_unique<GroupMember>(group, formation, std::move(staging)));
  }
  std::vector<std::int64_t> pids;
  for (const Peer& peer : formation.peers) pids.push_back(peer.pid);
  return std::make_unique<Loop>(*formation.doorbells, std::move(members), std::move(pids),
                                WaitPolicy(parts.place.local_size, usable_cores()), *parts.clock);
}

Status start(Engine::Parts& parts) {
  FARANDOLE_TRY_ASSIGN(parts.loop, make_loop(parts));
  parts.watch =
      std::make_unique<Watch>(*parts.formation.doorbells, watched(parts.formation), *parts.log);
  FARANDOLE_TRY(parts.loop->start());
  return parts.watch->start();
}

}  // namespace

Result<std::unique_ptr<Store>> choose_store(const EngineOptions& options) {
  FARANDOLE_TRY(check_place(options));
  if (options.rendezvous_descriptor < 0) return {std::make_unique<MemoryStore>()};
  FARANDOLE_TRY_ASSIGN(auto client, StoreClient::connect(options.rendezvous_descriptor));
  return {std::unique_ptr<Store>(std::move(client))};
}

Result<std::unique_ptr<Engine>> assemble(const EngineOptions& options, Store& store) {
  FARANDOLE_TRY_ASSIGN(const Level level, level_named(options.log_level));
  auto parts = std::make_unique<Engine::Parts>();
  parts->place = options.place;
  parts->clock = std::make_unique<SystemClock>();
  parts->log =
      std::make_unique<Log>(Log::Options{.level = level,
                                         .hide_time = options.log_hide_time,
                                         .tag = fmt::format("rank {}", options.place.rank)});
  FARANDOLE_TRY_ASSIGN(parts->formation, form(options, store));
  if (const Status started = start(*parts); !started.ok()) {
    // The others count on us already.
    parts->formation.doorbells->leave(started.message());
    return started;
  }
  (*parts->log)(Level::kInfo,
                fmt::format("joined a job of {} with {} groups, as process {}", options.place.size,
                            parts->formation.ranks_of.size(), ::getpid()));
  return std::make_unique<Engine>(std::move(parts));
}

}  // namespace farandole
