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

}  // namespace

bool gets_rank_from_launcher(const EngineOptions& options) {
  return options.elastic_worker >= 0 && options.rendezvous_id.empty();
}

Status take_elastic_rank(EngineOptions& options) {
  FARANDOLE_TRY_ASSIGN(const auto store, open_whole_store(options));
  FARANDOLE_TRY_ASSIGN(const auto failpoint, options.context->failpoint(options.failpoint));
  const std::int64_t left = options.context->epoch();
  const int worker = options.elastic_worker;
  // After a wait that was interrupted, the key may still exist.
  ByteWriter has_state;
  has_state.put(std::int64_t{options.context->has_state() ? 1 : 0});
  pass(failpoint, Failpoint::Place::kRankWanted);
  const Status asked = store->set(keys::rank_wanted(worker, left), has_state.take());
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
  options.topology = {.rank = record.rank, .size = record.size};
  options.rendezvous_id = keys::epoch_id(record.epoch);
  options.context->keep_store(store);
  return {};
}

}  // namespace farandole
