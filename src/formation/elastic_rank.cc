#include "formation/elastic_rank.h"

#include <bit>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "base/try.h"
#include "formation/job_stores.h"
#include "formation/process_context.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

// This worker waits without a time limit. The launcher has a time limit for this wait, and ends
// this worker if necessary.
constexpr auto kNoLimit = std::chrono::hours(24 * 365);

// Returns whether the launcher that serves the Store was lost. If it was lost, the driver starts
// another launcher.
bool is_lost_store_of_other_host(const EngineOptions& options, Store& store) {
  return !options.job_store.empty() && !store.clock().ok();
}

Status take_rank_from(const std::shared_ptr<Store>& store, EngineOptions& options) {
  ProcessContext& context = *options.context;
  FARANDOLE_TRY_ASSIGN(const auto failpoint, context.failpoint(options.failpoint));
  const std::int64_t left_epoch = context.epoch();
  const int worker = options.elastic_worker;
  // If an earlier wait was interrupted, the key of the request may still exist. Then set() returns
  // kFixCall, which is not an error here.
  const keys::RankRequest request{.left_epoch = left_epoch,
                                  .state_epoch = context.state_epoch(),
                                  .knows_state = context.knows_state()};
  pass(failpoint, Failpoint::Place::kRankWanted);
  const Status request_status = store->set(keys::rank_wanted(worker), request.encode());
  if (!request_status.ok() && request_status.code() != StatusCode::kFixCall) return request_status;
  pass(failpoint, Failpoint::Place::kRankAsked);
  const std::string rank_key = keys::rank_given(worker, left_epoch);
  const std::function<bool()> interrupted = [&] {
    return !context.announced_end().empty() || (options.interrupted && options.interrupted());
  };
  auto rank_value =
      store->wait(rank_key, {std::chrono::steady_clock::now() + kNoLimit, interrupted});
  if (const std::string end_reason = context.announced_end();
      !rank_value.ok() && !end_reason.empty())
    return Status::stop("the group is not formed again, because the job ends: " + end_reason);
  FARANDOLE_TRY(rank_value.status());
  pass(failpoint, Failpoint::Place::kRankGiven);
  FARANDOLE_TRY_ASSIGN(const auto record, keys::RankRecord::decode(*rank_value));
  FARANDOLE_TRY(store->remove(rank_key));
  context.set_epoch(record.epoch);
  // At this point, topology.rank is the slot of the worker, not its rank.
  context.make_timeline_state(options.topology.rank, options);
  if (record.has_state) context.set_knows_state();
  options.topology = {.rank = record.rank, .size = record.size};
  options.rendezvous_id = keys::epoch_id(record.epoch);
  context.keep_job_store(store);
  return {};
}

}  // namespace

bool gets_rank_from_launcher(const EngineOptions& options) {
  return options.elastic_worker >= 0 && options.rendezvous_id.empty();
}

Status take_elastic_rank(EngineOptions& options) {
  ProcessContext& context = *options.context;
  if (options.launcher_descriptor >= 0)
    FARANDOLE_TRY(context.watch_launcher(options.launcher_descriptor));
  for (;;) {
    FARANDOLE_TRY_ASSIGN(const auto store, open_whole_store(options));
    const Status status = take_rank_from(store, options);
    const bool may_try_again = context.announced_end().empty();
    if (status.ok() || !may_try_again || !is_lost_store_of_other_host(options, *store))
      return status;
  }
}

bool may_join_again(const EngineOptions& options, const Status& failure, int tries) {
  const auto store = options.context->kept_job_store();
  const bool has_lost_store = store != nullptr && is_lost_store_of_other_host(options, *store);
  if (failure.code() != StatusCode::kRebuildGroup && !has_lost_store) return false;
  if (tries > 1 && std::has_single_bit(static_cast<unsigned>(tries)))
    std::fprintf(stderr, "farandole: worker %d could not join the group %d times in a row: %s\n",
                 options.elastic_worker, tries, failure.message().c_str());
  return true;
}

}  // namespace farandole
