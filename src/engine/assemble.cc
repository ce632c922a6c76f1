#include "engine/assemble.h"

#include <functional>
#include <utility>

#include "base/allocation.h"
#include "base/check.h"
#include "base/format.h"
#include "base/knobs.h"
#include "base/try.h"
#include "formation/process_context.h"
#include "formation/timeline_job.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

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
                                             .transports = {.memory = formation.mailbox_memory,
                                                            .local_ranks = {},
                                                            .channels = parts.channels.get()},
                                             .pids = {}};
  for (const Peer& peer : formation.peers) dependencies.transports.local_ranks.push_back(peer.rank);
  for (const RankInfo& rank : formation.ranks) dependencies.pids.push_back(rank.pid);
  return std::make_unique<ProgressThreads>(
      std::move(dependencies), std::move(members),
      Loop::Options{.policy = WaitPolicy(formation.topology.local_size, formation.cores),
                    .stall_limit = stall_limit});
}

Status start_stall_warnings(Engine::Parts& parts, const EngineOptions& options) {
  const auto warn_after = stall_warning_time(options);
  if (!has_other_launcher(options) || options.is_subset_of_job || warn_after.count() == 0)
    return {};
  if (parts.formation.topology.local_rank != 0) return {};
  Store* const reports = parts.formation.hosts() > 1 ? parts.stores.reports.get() : nullptr;
  parts.stall_warnings = std::make_unique<StallWarnings>(
      parts.formation, reports, warn_after,
      [log = parts.log.get()](const std::string& line) { (*log)(Level::kWarning, line); });
  return parts.stall_warnings->start();
}

// An error in the timeline's path is the same on all ranks, so only local rank 0 logs it.
void start_timeline(Engine::Parts& parts, const EngineOptions& options) {
  const auto old_timeline = parts.elastic_group ? options.context->timeline_state() : nullptr;
  const std::string path = old_timeline ? old_timeline->path : options.timeline_path;
  const bool mark_cycles = old_timeline ? old_timeline->mark_cycles : options.timeline_mark_cycles;
  if (path.empty()) return;
  const auto job = timeline_job(parts.formation, *parts.stores.job, parts.elastic_group);
  const Status status = job.ok() ? parts.timeline->start(path, *job, mark_cycles) : job.status();
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
  const bool logs_warning = formation.topology.rank == 0 && options.rendezvous_id.empty();
  if (options.unsealed_data && logs_warning)
    (*parts.log)(Level::kWarning,
                 "FARANDOLE_UNSEALED_DATA is set: everybody on the network can read and change the "
                 "tensors that travel between the hosts of this job");
  FARANDOLE_TRY_ASSIGN(parts.channels,
                       parts.network->make_channels(formation, options.start_timeout));
  return {};
}

// Waits until the group members are connected. If hosts cannot reach each other, the start fails
// here. In an elastic job, a member may end before it connects; only the launchers know this.
Status connect_to_other_hosts(Engine::Parts& parts, const EngineOptions& options) {
  bool member_is_gone = false;
  const Status connect_status = parts.channels->wait_until_connected([&] {
    if (options.interrupted && options.interrupted()) return true;
    const std::function<bool()> no_interruption;
    member_is_gone = parts.epoch > 0 &&
                     parts.stores.job->wait(keys::member_is_gone(), {TimePoint{}, no_interruption})
                             .status()
                             .code() != StatusCode::kRetry;
    return member_is_gone;
  });
  if (connect_status.code() != StatusCode::kRetry || !member_is_gone) return connect_status;
  return Status::rebuild_group("a member of the group is gone, so the group is formed again");
}

// The launcher reports the members that are lost with their host. This rank cannot see such a loss:
// if a whole host stops, the connections to its members stay open.
void watch_members(Engine::Parts& parts) {
  parts.context->watch_members(parts.epoch, [&doorbells = *parts.formation.doorbells](int rank) {
    if (rank < doorbells.size() && !doorbells.has_left(rank)) doorbells.close(rank);
  });
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
  if (parts.channels) FARANDOLE_TRY(connect_to_other_hosts(parts, options));
  FARANDOLE_TRY(parts.progress->start());
  FARANDOLE_TRY(parts.watch->start());
  if (parts.epoch > 0) watch_members(parts);
  return start_stall_warnings(parts, options);
}

// The other ranks have already seen this rank join, so they must also see it leave.
void leave(Engine::Parts& parts, const std::string& reason) {
  if (parts.epoch > 0) parts.context->watch_members(0, {});
  if (parts.progress) parts.progress->stop(reason);
  if (!parts.progress) parts.formation.doorbells->leave(reason);
  parts.recorder->record_left(reason, LeaveCause::kOrderly, {}, parts.clock->now());
}

}  // namespace

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
  parts->context = options.context;
  if (options.elastic_worker >= 0 && !options.is_subset_of_job)
    parts->epoch = options.context->epoch();
  if (const auto job = options.context->elastic_job_name(); job && parts->epoch > 0)
    parts->elastic_group = ElasticGroup{
        .epoch = parts->epoch, .job = *job, .may_have_other_hosts = parts->network != nullptr};
  FARANDOLE_TRY_ASSIGN(parts->failpoint, options.context->failpoint(options.failpoint));
  FARANDOLE_TRY_ASSIGN(parts->flight_memory,
                       options.context->flight_memory(options.flight_record_descriptor));
  parts->timeline = std::make_unique<Timeline>(
      Timeline::Options{
          .rank = {.rank = options.topology.rank, .size = options.topology.size, .pid = ::getpid()},
          .bytes_max = options.timeline_bytes,
          .shared_state = parts->elastic_group ? options.context->timeline_state() : nullptr},
      *parts->clock, *parts->log);
  parts->recorder =
      std::make_unique<FlightRecorder>(parts->flight_memory.segment->data(), parts->timeline.get());
  parts->recorder->begin(parts->clock->now());
  auto formation_result = form(
      {.options = options,
       .stores = parts->stores,
       .make_heap = [&](std::size_t bytes) { return options.context->heap(bytes); },
       .listen = [&](std::int64_t epoch) -> Result<std::vector<std::string>> {
         if (!parts->network) return {std::vector<std::string>()};
         return parts->network->listen(options.topology.rank, epoch);
       },
       .flight_record = has_other_launcher(options) ? parts->flight_memory.segment.get() : nullptr,
       .failpoint = parts->failpoint});
  parts->flight_memory.segment->close_descriptor();
  if (!formation_result.ok()) {
    parts->recorder->record_left(formation_result.status().message(), LeaveCause::kOrderly, {},
                                 parts->clock->now());
    return formation_result.status();
  }
  parts->formation = *std::move(formation_result);
  std::unique_ptr<Engine> engine;
  const auto failure_text = [&] {
    return format_text("rank {} cannot start", options.topology.rank);
  };
  const Status start_status = catch_bad_alloc(failure_text, [&]() -> Status {
    FARANDOLE_TRY(start(*parts, options));
    parts->recorder->record_membership(parts->clock->now());
    start_timeline(*parts, options);
    (*parts->log)(Level::kInfo,
                  format_text("joined a job of {} with {} groups, as process {}",
                              options.topology.size, parts->formation.ranks_of.size(), ::getpid()));
    engine = std::make_unique<Engine>(std::move(parts));
    return {};
  });
  if (start_status.ok()) return engine;
  leave(*parts, start_status.message());
  return start_status;
}

}  // namespace farandole
