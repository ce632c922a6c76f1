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

// The launcher knows how long to wait, and ends this worker if it must.
constexpr auto kNoLimit = std::chrono::hours(24 * 365);

// The launcher that serves it was lost, and the driver starts another one.
bool is_lost_store_of_other_host(const EngineOptions& options, Store& store) {
  return !options.job_store.empty() && !store.clock().ok();
}

Status take_rank_from(const std::shared_ptr<Store>& store, EngineOptions& options) {
  ProcessContext& context = *options.context;
  FARANDOLE_TRY_ASSIGN(const auto failpoint, context.failpoint(options.failpoint));
  const std::int64_t left = context.epoch();
  const int worker = options.elastic_worker;
  // After a wait that was interrupted, the key may still exist.
  const keys::RankRequest request{
      .left = left, .state_epoch = context.state_epoch(), .knows_state = context.knows_state()};
  pass(failpoint, Failpoint::Place::kRankWanted);
  const Status asked = store->set(keys::rank_wanted(worker), request.encode());
  if (!asked.ok() && asked.code() != StatusCode::kFixCall) return asked;
  pass(failpoint, Failpoint::Place::kRankAsked);
  const std::string answer = keys::rank_given(worker, left);
  const std::function<bool()> interrupted = [&] {
    return !context.announced_end().empty() || (options.interrupted && options.interrupted());
  };
  auto given = store->wait(answer, {std::chrono::steady_clock::now() + kNoLimit, interrupted});
  if (const std::string why = context.announced_end(); !given.ok() && !why.empty())
    return Status::stop("the group is not formed again, because the job ends: " + why);
  FARANDOLE_TRY(given.status());
  pass(failpoint, Failpoint::Place::kRankGiven);
  FARANDOLE_TRY_ASSIGN(const auto record, keys::RankRecord::decode(*given));
  FARANDOLE_TRY(store->remove(answer));
  context.set_epoch(record.epoch);
  context.make_continued_timeline(options.topology.rank, options);  // until now, this is the slot
  if (record.has_state) context.set_knows_state();
  options.topology = {.rank = record.rank, .size = record.size};
  options.rendezvous_id = keys::epoch_id(record.epoch);
  context.keep_store(store);
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
    const Status taken = take_rank_from(store, options);
    const bool may_try_again = context.announced_end().empty();
    if (taken.ok() || !may_try_again || !is_lost_store_of_other_host(options, *store)) return taken;
  }
}

bool may_join_again(const EngineOptions& options, const Status& failure, int tries) {
  const auto store = options.context->kept_store();
  const bool has_lost_store = store != nullptr && is_lost_store_of_other_host(options, *store);
  if (failure.code() != StatusCode::kRebuildGroup && !has_lost_store) return false;
  if (tries > 1 && std::has_single_bit(static_cast<unsigned>(tries)))
    std::fprintf(stderr, "farandole: worker %d could not join the group %d times in a row: %s\n",
                 options.elastic_worker, tries, failure.message().c_str());
  return true;
}

}  // namespace farandole
