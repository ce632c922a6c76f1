#include "formation/elastic_rank.h"

#include <chrono>

#include "base/try.h"
#include "formation/job_stores.h"
#include "formation/process_context.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

// The launcher knows how long to wait, and ends this worker if it must.
constexpr auto kNoLimit = std::chrono::hours(24 * 365);

// The launcher that serves it was lost, and the driver starts another one.
bool is_lost_store_of_other_host(const EngineOptions& options, Store& store) {
  return !options.job_store.empty() && !store.clock().ok();
}

Status take_rank_from(const std::shared_ptr<Store>& store, EngineOptions& options) {
  FARANDOLE_TRY_ASSIGN(const auto failpoint, options.context->failpoint(options.failpoint));
  const std::int64_t left = options.context->epoch();
  const int worker = options.elastic_worker;
  // After a wait that was interrupted, the key may still exist.
  const keys::RankRequest request{.left = left,
                                  .state_epoch = options.context->state_epoch(),
                                  .knows_state = options.context->knows_state()};
  pass(failpoint, Failpoint::Place::kRankWanted);
  const Status asked = store->set(keys::rank_wanted(worker), request.encode());
  if (!asked.ok() && asked.code() != StatusCode::kFixCall) return asked;
  pass(failpoint, Failpoint::Place::kRankAsked);
  const std::string answer = keys::rank_given(worker, left);
  FARANDOLE_TRY_ASSIGN(
      const Bytes given,
      store->wait(answer, {std::chrono::steady_clock::now() + kNoLimit, options.interrupted}));
  pass(failpoint, Failpoint::Place::kRankGiven);
  FARANDOLE_TRY_ASSIGN(const auto record, keys::RankRecord::decode(given));
  FARANDOLE_TRY(store->remove(answer));
  options.context->set_epoch(record.epoch);
  if (record.has_state) options.context->set_knows_state();
  options.topology = {.rank = record.rank, .size = record.size};
  options.rendezvous_id = keys::epoch_id(record.epoch);
  options.context->keep_store(store);
  return {};
}

}  // namespace

bool gets_rank_from_launcher(const EngineOptions& options) {
  return options.elastic_worker >= 0 && options.rendezvous_id.empty();
}

Status take_elastic_rank(EngineOptions& options) {
  for (;;) {
    FARANDOLE_TRY_ASSIGN(const auto store, open_whole_store(options));
    const Status taken = take_rank_from(store, options);
    if (taken.ok() || !is_lost_store_of_other_host(options, *store)) return taken;
  }
}

bool has_lost_job_store(const EngineOptions& options) {
  const auto store = options.context->kept_store();
  return store != nullptr && is_lost_store_of_other_host(options, *store);
}

}  // namespace farandole
