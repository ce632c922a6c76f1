#include "engine/assemble.h"

#include <utility>

#include "base/allocation.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/format.h"
#include "base/try.h"
#include "formation/host_places.h"
#include "formation/process_context.h"
#include "formation/timeline_job.h"
#include "network/tcp/listen_knobs.h"
#include "rendezvous/job_name.h"
#include "rendezvous/keys.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/named_store.h"
#include "rendezvous/prefixed_store.h"

namespace farandole {
namespace {

Status check_topology(const EngineOptions& options) {
  const RankTopology& topology = options.topology;
  if (topology.size < 1 || topology.rank < 0 || topology.rank >= topology.size)
    return Status::fix_call(format_text(
        "rank {} is outside a job of size {}; FARANDOLE_RANK and FARANDOLE_SIZE are set by "
        "`farandole run`",
        topology.rank, topology.size));
  if (topology.local_size >= 0 && topology.local_rank >= topology.local_size)
    return Status::fix_call(format_text(
        "local rank {} is outside its host's share of {} ranks; FARANDOLE_LOCAL_RANK and "
        "FARANDOLE_LOCAL_SIZE are set by `farandole run`",
        topology.local_rank, topology.local_size));
  if (topology.size > 1 && options.rendezvous_descriptor < 0 && options.rendezvous_id.empty() &&
      options.job_store.empty())
    return Status::fix_call(format_text(
        "a job of size {} needs a launcher: start it with `farandole run -n {} …` (there is no "
        "FARANDOLE_RENDEZVOUS_DESCRIPTOR here)",
        topology.size, topology.size));
  return {};
}

WaitLimit start_limit(const EngineOptions& options) {
  return {std::chrono::steady_clock::now() + options.start_timeout, options.interrupted};
}

// `members` ranks of this host use the id.
Result<std::shared_ptr<LocalStore>> open_store_by_id(const std::string& id, int members,
                                                     const WaitLimit& limit) {
  Digest digest;
  digest.add(id);
  // The name contains the user id, because all users of a host share these names.
  return open_named_store(format_text("farandole.{}.{:016x}", ::getuid(), digest.value()), members,
                          limit);
}

std::vector<Watch::Process> processes_to_watch(const Formation& formation) {
  const std::int64_t own_pid = ::getpid();
  std::vector<Watch::Process> processes;
  for (const Peer& peer : formation.peers)
    if (peer.pid != own_pid) processes.push_back({peer.rank, peer.pidfd.get()});
  return processes;
}

Result<std::unique_ptr<ProgressThreads>> make_progress_threads(const Engine::Parts& parts,
                                                               std::chrono::seconds stall_limit) {
  const Formation& formation = parts.formation;
  std::vector<std::unique_ptr<GroupMember>> members;
  for (const FormedGroup& group : formation.groups) {
    FARANDOLE_TRY_ASSIGN(auto member, make_group_member(group, formation, *parts.recorder,
                                                        *parts.clock, parts.channels.get()));
    members.push_back(std::move(member));
  }
  ProgressThreads::Dependencies dependencies{.doorbells = *formation.doorbells,
                                             .recorder = *parts.recorder,
                                             .clock = *parts.clock,
                                             .ways = {.memory = formation.mailbox_memory,
                                                      .local_ranks = {},
                                                      .channels = parts.channels.get()},
                                             .pids = {}};
  for (const Peer& peer : formation.peers) dependencies.ways.local_ranks.push_back(peer.rank);
  for (const RankInfo& rank : formation.ranks) dependencies.pids.push_back(rank.pid);
  return std::make_unique<ProgressThreads>(
      std::move(dependencies), std::move(members),
      Loop::Options{.policy = WaitPolicy(formation.topology.local_size, formation.cores),
                    .stall_limit = stall_limit});
}

// An error in the path is the same on all ranks, so only local rank 0 logs it.
void start_timeline(Engine::Parts& parts, const EngineOptions& options) {
  if (options.timeline_path.empty()) return;
  const auto job = timeline_job(parts.formation, *parts.stores.job);
  const Status status =
      job.ok() ? parts.timeline->start(options.timeline_path, *job, options.timeline_mark_cycles)
               : job.status();
  if (status.ok() ||
      (status.code() == StatusCode::kFixCall && parts.formation.topology.local_rank > 0))
    return;
  (*parts.log)(Level::kWarning, status.message() + "; the job goes on without it");
}

Status make_channels(Engine::Parts& parts, const EngineOptions& options) {
  const Formation& formation = parts.formation;
  if (formation.hosts() == 1) return {};
  if (!parts.network)
    return Status::fix_call(format_text(
        "the ranks of this job are on {} hosts, {}, but they do not share a job secret, so they "
        "cannot trust each other: start the job with `farandole run`, or start all ranks on one "
        "host, in one container and under one launcher",
        formation.hosts(), hosts_text(formation.ranks)));
  const bool is_first = formation.topology.rank == 0 && options.rendezvous_id.empty();
  if (options.unsealed_data && is_first)
    (*parts.log)(Level::kWarning,
                 "FARANDOLE_UNSEALED_DATA is set: everybody on the network can read and change the "
                 "tensors that travel between the hosts of this job");
  FARANDOLE_TRY_ASSIGN(parts.channels,
                       parts.network->make_channels(formation, options.start_timeout));
  return {};
}

Status start(Engine::Parts& parts, const EngineOptions& options) {
  FARANDOLE_TRY(make_channels(parts, options));
  FARANDOLE_TRY_ASSIGN(parts.progress, make_progress_threads(parts, options.stall_limit));
  parts.groups = std::make_unique<Groups>(Groups::Dependencies{
      .formation = parts.formation,
      .store = *parts.stores.local,
      .progress = *parts.progress,
      .recorder = *parts.recorder,
      .clock = *parts.clock,
      .interrupted = options.interrupted,
      .channels = parts.channels.get(),
  });
  parts.watch = std::make_unique<Watch>(*parts.formation.doorbells,
                                        processes_to_watch(parts.formation), *parts.log);
  // The group members have begun to connect. If the hosts of the job cannot reach each other, the
  // start fails here.
  if (parts.channels) FARANDOLE_TRY(parts.channels->wait_until_connected(options.interrupted));
  FARANDOLE_TRY(parts.progress->start());
  return parts.watch->start();
}

bool has_launcher(const EngineOptions& options) { return options.rendezvous_descriptor >= 0; }

Result<std::shared_ptr<LocalStore>> store_of_launcher(const EngineOptions& options) {
  FARANDOLE_TRY_ASSIGN(auto store, options.context->launcher_store(options.rendezvous_descriptor));
  if (options.rendezvous_id.empty()) return store;
  // Other engines of the job may use the same Store at the same time.
  return {std::make_shared<PrefixedLocalStore>(std::move(store),
                                               keys::engine_prefix(options.rendezvous_id))};
}

// For a job on this host.
Result<std::shared_ptr<LocalStore>> choose_local_store(const EngineOptions& options) {
  if (has_launcher(options)) return store_of_launcher(options);
  const bool is_alone = options.topology.size == 1 || options.rendezvous_id.empty();
  if (is_alone) return {std::make_shared<MemoryStore>()};
  return open_store_by_id(options.rendezvous_id, options.topology.size, start_limit(options));
}

// For a job over several hosts. Without our launcher, the ranks find out in the job's Store how
// many of them are on this host.
Result<std::shared_ptr<LocalStore>> choose_local_store(const EngineOptions& options, Store& store,
                                                       const std::string& name) {
  if (has_launcher(options)) return store_of_launcher(options);
  if (options.rendezvous_id.empty()) return {std::make_shared<MemoryStore>()};
  const WaitLimit limit = start_limit(options);
  const RankTopology& topology = options.topology;
  FARANDOLE_TRY_ASSIGN(const int members,
                       count_ranks_at(own_place(), topology.rank, topology.size, store, limit));
  if (members == 1) return {std::make_shared<MemoryStore>()};
  return open_store_by_id(format_text("{} {}", name, options.rendezvous_id), members, limit);
}

Result<std::shared_ptr<Store>> open_job_store(const EngineOptions& options,
                                              std::shared_ptr<const TlsContext> tls,
                                              const InterfaceChoice& interfaces) {
  const auto rank = static_cast<std::uint32_t>(options.topology.rank);
  const RemoteStore::Options remote{
      .places = options.job_store, .context = std::move(tls), .self = {Role::kWorker, rank}};
  const WaitLimit limit = start_limit(options);
  return options.serves_job_store ? options.context->serve_job_store(remote, interfaces, limit)
                                  : options.context->job_store(remote, limit);
}

}  // namespace

Result<StoresAndNetwork> open_stores_and_network(const EngineOptions& options) {
  FARANDOLE_TRY(check_topology(options));
  StoresAndNetwork found;
  found.stores.for_one_formation = !options.rendezvous_id.empty();
  if (options.job_store.empty()) {
    FARANDOLE_TRY_ASSIGN(found.stores.local, choose_local_store(options));
    found.stores.job = found.stores.local;
    return found;
  }
  FARANDOLE_TRY_ASSIGN(const PortRange ports, parse_ports(options.ports));
  HostNetwork::Options network{.interfaces = parse_interfaces(options.network_interfaces),
                               .port_first = ports.first,
                               .port_last = ports.last,
                               .seals_data = !options.unsealed_data};
  FARANDOLE_TRY_ASSIGN(const auto tls,
                       options.context->tls(options, start_limit(options).deadline));
  FARANDOLE_TRY_ASSIGN(found.stores.job, open_job_store(options, tls, network.interfaces));
  FARANDOLE_TRY_ASSIGN(const std::string name, job_name(*found.stores.job));
  network.job = job_number(name, options.rendezvous_id);
  if (!options.rendezvous_id.empty())
    found.stores.job = std::make_shared<PrefixedStore>(std::move(found.stores.job),
                                                       keys::engine_prefix(options.rendezvous_id));
  FARANDOLE_TRY_ASSIGN(found.stores.local, choose_local_store(options, *found.stores.job, name));
  found.network = std::make_unique<HostNetwork>(tls, std::move(network));
  return found;
}

Status report_end(const EngineOptions& options, const std::string& reason, LeaveCause cause,
                  const std::string& traceback) {
  if (options.flight_record_descriptor < 0) return {};
  FARANDOLE_TRY_ASSIGN(const auto segment, attach_flight_memory(options.flight_record_descriptor));
  FlightRecorder(segment->data()).record_left(reason, cause, traceback, SystemClock().now());
  return {};
}

Result<std::unique_ptr<Engine>> assemble(const EngineOptions& options, Stores stores,
                                         std::unique_ptr<HostNetwork> network) {
  CHECK(options.context, "Engine::create() gives a context to options without one");
  FARANDOLE_TRY_ASSIGN(const Level level, level_named(options.log_level));
  auto parts = std::make_unique<Engine::Parts>();
  parts->clock = std::make_unique<SystemClock>();
  parts->log =
      std::make_unique<Log>(Log::Options{.level = level,
                                         .hide_time = options.log_hide_time,
                                         .tag = format_text("rank {}", options.topology.rank)});
  parts->stores = std::move(stores);
  parts->network = std::move(network);
  FARANDOLE_TRY_ASSIGN(parts->flight_memory,
                       options.context->flight_memory(options.flight_record_descriptor));
  parts->timeline = std::make_unique<Timeline>(
      Timeline::Options{
          .rank = {.rank = options.topology.rank, .size = options.topology.size, .pid = ::getpid()},
          .bytes_max = options.timeline_bytes},
      *parts->clock, *parts->log);
  parts->recorder =
      std::make_unique<FlightRecorder>(parts->flight_memory.segment->data(), parts->timeline.get());
  parts->recorder->begin(parts->clock->now());
  auto formed = form({.options = options,
                      .stores = parts->stores,
                      .make_heap = [&](std::size_t bytes) { return options.context->heap(bytes); },
                      .listen = [&](std::int64_t epoch) -> Result<std::vector<std::string>> {
                        if (!parts->network) return {std::vector<std::string>()};
                        return parts->network->listen(options.topology.rank, epoch);
                      }});
  if (!formed.ok()) {
    parts->recorder->record_left(formed.status().message(), LeaveCause::kOrderly, {},
                                 parts->clock->now());
    return formed.status();
  }
  parts->formation = *std::move(formed);
  std::unique_ptr<Engine> engine;
  const auto what_failed = [&] {
    return format_text("rank {} cannot start", options.topology.rank);
  };
  const Status started = catch_bad_alloc(what_failed, [&]() -> Status {
    FARANDOLE_TRY(start(*parts, options));
    parts->recorder->record_formed(parts->clock->now());
    start_timeline(*parts, options);
    (*parts->log)(Level::kInfo,
                  format_text("joined a job of {} with {} groups, as process {}",
                              options.topology.size, parts->formation.ranks_of.size(), ::getpid()));
    engine = std::make_unique<Engine>(std::move(parts));
    return {};
  });
  if (!started.ok()) {
    // The other ranks have already seen this rank join.
    parts->formation.doorbells->leave(started.message());
    parts->recorder->record_left(started.message(), LeaveCause::kOrderly, {}, parts->clock->now());
    return started;
  }
  return engine;
}

}  // namespace farandole
