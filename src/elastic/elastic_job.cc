#include "elastic/elastic_job.h"

#include "base/format.h"
#include "rendezvous/keys.h"

namespace farandole {

void fail_formation(StoreServer& store, std::int64_t epoch, const std::string& how_it_ended) {
  // The result is ignored: an error means that the key already has a value, which the Store keeps.
  (void)store.set(
      keys::epoch_prefix(epoch) + keys::complete(keys::kFirstEpoch),
      keys::text_value(how_it_ended + " before all ranks had joined the job in init()"));
}

ElasticJob::ElasticJob(const Membership::Options& options, StoreServer& store, int first_number)
    : membership_(options),
      store_(store),
      workers_(static_cast<std::size_t>(options.workers)),
      next_number_(first_number) {}

void ElasticJob::add_slots(int count) {
  workers_.resize(workers_.size() + static_cast<std::size_t>(count));
  membership_.add_slots(count);
}

void ElasticJob::worker_found(int slot, int number, TimePoint now) {
  workers_.at(static_cast<std::size_t>(slot)) = {.number = number, .is_running = true};
  membership_.worker_started(slot, now);
}

int ElasticJob::worker_started(int slot, TimePoint now) {
  workers_.at(static_cast<std::size_t>(slot)) = {.number = next_number_, .is_running = true};
  membership_.worker_started(slot, now);
  return next_number_++;
}

void ElasticJob::worker_ended(int slot, bool succeeded, const std::string& how_it_ended,
                              TimePoint now) {
  if (membership_.is_member(slot)) publish_member_loss(how_it_ended);
  Worker& worker = workers_.at(static_cast<std::size_t>(slot));
  worker.is_running = false;
  store_.remove(keys::rank_wanted(worker.number));
  store_.remove_with_prefix(keys::worker_key_prefix(keys::kRankGiven, worker.number));
  membership_.worker_ended(slot, succeeded, now);
}

Membership::Decisions ElasticJob::advance(TimePoint now) {
  for (std::size_t slot = 0; slot < workers_.size(); ++slot) {
    Worker& worker = workers_[slot];
    if (!worker.is_running) continue;
    const std::string key = keys::rank_wanted(worker.number);
    const auto bytes = store_.bytes_at(key);
    if (!bytes) continue;
    store_.remove(key);
    const auto request = keys::RankRequest::decode(*bytes);
    if (!request.ok()) continue;  // only a foreign program writes such a request
    worker.epoch = request->left_epoch;
    // A member may have lost its connection to the Store while the epoch was formed. Then the
    // member could not report that it has left the epoch. But its new request shows that it has
    // left.
    if (membership_.is_member(static_cast<int>(slot)))
      publish_member_loss(format_text("worker {} has left", slot));
    if (request->knows_state) membership_.set_any_worker_had_state();
    membership_.rank_wanted(static_cast<int>(slot), request->left_epoch, request->state_epoch);
  }
  Membership::Decisions decisions = membership_.decide(now);
  if (decisions.new_epoch) give_ranks(*decisions.new_epoch);
  if (decisions.announces_change)
    (void)store_.set(keys::epoch_prefix(membership_.epoch().number) + keys::change_announced(), {});
  return decisions;
}

// If the epoch is not completely formed yet, its formation fails, because it cannot be completed
// without this member.
void ElasticJob::publish_member_loss(const std::string& how_it_ended) {
  fail_formation(store_, membership_.epoch().number, how_it_ended);
  // The result is ignored: an error means that the key exists already.
  (void)store_.set(keys::epoch_prefix(membership_.epoch().number) + keys::member_is_gone(), {});
}

void ElasticJob::give_ranks(const Epoch& epoch) {
  // No worker uses the keys of the previous epoch any more.
  store_.remove_with_prefix(keys::epoch_prefix(epoch.number - 1));
  const auto size = static_cast<std::int32_t>(epoch.workers.size());
  for (std::int32_t rank = 0; rank < size; ++rank) {
    Worker& worker =
        workers_.at(static_cast<std::size_t>(epoch.workers[static_cast<std::size_t>(rank)]));
    // set() cannot fail: the key is new, because this worker has not received this answer before.
    (void)store_.set(
        keys::rank_given(worker.number, worker.epoch),
        keys::RankRecord{epoch.number, rank, size, membership_.any_worker_had_state()}.encode());
    worker.epoch = epoch.number;
  }
}

}  // namespace farandole
