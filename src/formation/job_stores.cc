#include "formation/job_stores.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/digest.h"
#include "base/format.h"
#include "base/try.h"
#include "formation/host_places.h"
#include "formation/process_context.h"
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

bool is_epoch_of_elastic_job(const EngineOptions& options) {
  return options.elastic_worker >= 0 &&
         options.rendezvous_id == keys::epoch_id(options.context->epoch());
}

WaitLimit start_limit(const EngineOptions& options) {
  return {std::chrono::steady_clock::now() + options.start_timeout, options.interrupted};
}

// Reads the name of the elastic job and keeps it in the process context. The keys of `whole_store`
// have no prefix.
Status keep_elastic_job_name(const EngineOptions& options, Store& whole_store) {
  if (!is_epoch_of_elastic_job(options)) return {};
  ProcessContext& context = *options.context;
  const std::string end_key = keys::epoch_prefix(context.epoch()) + keys::member_is_gone();
  FARANDOLE_TRY_ASSIGN(
      auto name, elastic_job_name(whole_store, options.topology.rank, context.elastic_job_name(),
                                  end_key, start_limit(options)));
  context.set_elastic_job_name(std::move(name));
  return {};
}

// Opens the Store of this id, which `members` ranks of this host use.
Result<std::shared_ptr<LocalStore>> open_store_by_id(const std::string& id, int members,
                                                     const WaitLimit& limit) {
  Digest digest;
  digest.add(id);
  // The name contains the user id, because all users of a host share the names of these sockets.
  return open_named_store(format_text("farandole.{}.{:016x}", ::getuid(), digest.value()), members,
                          limit);
}

bool has_launcher(const EngineOptions& options) { return options.rendezvous_descriptor >= 0; }

Result<std::shared_ptr<LocalStore>> store_of_launcher(const EngineOptions& options) {
  FARANDOLE_TRY_ASSIGN(auto store, options.context->launcher_store(options.rendezvous_descriptor));
  if (options.rendezvous_id.empty()) return store;
  // The prefix is needed because other engines of the job may use the same Store at the same time.
  return {std::make_shared<PrefixedLocalStore>(std::move(store),
                                               keys::engine_prefix(options.rendezvous_id))};
}

// Chooses the LocalStore for a job on one host.
Result<std::shared_ptr<LocalStore>> choose_local_store(const EngineOptions& options) {
  if (has_launcher(options)) return store_of_launcher(options);
  const bool is_alone = options.topology.size == 1 || options.rendezvous_id.empty();
  if (is_alone) return {std::make_shared<MemoryStore>()};
  return open_store_by_id(options.rendezvous_id, options.topology.size, start_limit(options));
}

// Chooses the LocalStore for a job over several hosts. Without `farandole run`, the ranks find out
// in the job's Store `store` how many of them are on this host.
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
  const RemoteStore::Options store_options{
      .places = options.job_store, .context = std::move(tls), .self = {Role::kWorker, rank}};
  const WaitLimit limit = start_limit(options);
  return options.serves_job_store
             ? options.context->serve_job_store(store_options, interfaces, limit)
             : options.context->job_store(store_options, limit);
}

}  // namespace

Result<std::shared_ptr<Store>> open_whole_store(const EngineOptions& options) {
  if (options.job_store.empty()) {
    FARANDOLE_TRY_ASSIGN(auto store,
                         options.context->launcher_store(options.rendezvous_descriptor));
    return {std::move(store)};
  }
  FARANDOLE_TRY_ASSIGN(auto tls,
                       options.context->tls_context(options, start_limit(options).deadline));
  return open_job_store(options, std::move(tls), parse_interfaces(options.network_interfaces));
}

bool has_other_launcher(const EngineOptions& options) {
  return !has_launcher(options) && !options.rendezvous_id.empty();
}

Result<StoresAndNetwork> open_stores_and_network(const EngineOptions& options) {
  FARANDOLE_TRY(check_topology(options));
  StoresAndNetwork opened;
  opened.stores.for_one_formation = !options.rendezvous_id.empty();
  if (options.job_store.empty()) {
    if (is_epoch_of_elastic_job(options)) {
      FARANDOLE_TRY_ASSIGN(const auto whole_store, open_whole_store(options));
      FARANDOLE_TRY(keep_elastic_job_name(options, *whole_store));
    }
    FARANDOLE_TRY_ASSIGN(opened.stores.local, choose_local_store(options));
    opened.stores.job = opened.stores.local;
    return opened;
  }
  FARANDOLE_TRY_ASSIGN(const PortRange ports, parse_ports(options.ports));
  HostNetwork::Options network{.interfaces = parse_interfaces(options.network_interfaces),
                               .port_first = ports.first,
                               .port_last = ports.last,
                               .seals_data = !options.unsealed_data,
                               .tcp = tcp_options(options.elastic_worker >= 0)};
  FARANDOLE_TRY_ASSIGN(const auto tls,
                       options.context->tls_context(options, start_limit(options).deadline));
  // The ranks must form the group in the Store from which they have read their ranks, even if this
  // Store was lost after this process had read its rank.
  if (is_epoch_of_elastic_job(options)) opened.stores.job = options.context->kept_job_store();
  if (opened.stores.job == nullptr) {
    FARANDOLE_TRY_ASSIGN(opened.stores.job, open_job_store(options, tls, network.interfaces));
  }
  FARANDOLE_TRY(keep_elastic_job_name(options, *opened.stores.job));
  FARANDOLE_TRY_ASSIGN(const std::string name, job_name(*opened.stores.job));
  network.job = job_number(name, options.rendezvous_id);
  if (has_other_launcher(options))
    opened.stores.reports = std::make_shared<PrefixedStore>(
        opened.stores.job, keys::reports_prefix(options.rendezvous_id));
  if (!options.rendezvous_id.empty())
    opened.stores.job = std::make_shared<PrefixedStore>(std::move(opened.stores.job),
                                                        keys::engine_prefix(options.rendezvous_id));
  FARANDOLE_TRY_ASSIGN(opened.stores.local, choose_local_store(options, *opened.stores.job, name));
  opened.network = std::make_unique<HostNetwork>(tls, std::move(network));
  return opened;
}

}  // namespace farandole
