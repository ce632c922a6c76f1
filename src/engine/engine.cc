// The methods of the public interface. Malformed calls are rejected here. Well-formed but invalid
// calls are announced, so that every rank gets the same error.
#include "farandole/engine.h"

#include <new>
#include <utility>

#include "base/allocation.h"
#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "engine/assemble.h"
#include "engine/completions.h"
#include "formation/elastic_rank.h"
#include "formation/timeline_job.h"
#include "rendezvous/keys.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

Status forked_child_error(int rank) {
  return Status::stop(format_text(
      "called in a forked child of rank {}: only the process that called init() can use farandole",
      rank));
}

// Rejects blocking functions inside a completion. While a completion runs, this rank makes no
// progress, so a blocking function could wait forever.
Status check_may_block(std::string_view function_name) {
  if (!Completions::is_running_on_this_thread()) return {};
  return Status::fix_call(format_text(
      "{} was called from the completion of a call, which must not block; call it from another "
      "thread",
      function_name));
}

// Checks a batch. `batch_with_errors` must be empty. If calls of the batch are invalid, this vector
// gets a copy of the batch, with the call errors. Errors: as check_submission().
Status check_and_find_call_errors(const Engine::Parts& parts, std::span<const Submission> batch,
                                  std::vector<Submission>& batch_with_errors) {
  const int rank = parts.formation.topology.rank;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto ranks = parts.groups->find(batch[i].group);
    if (!ranks) return parts.groups->not_found_error(batch[i].group);
    FARANDOLE_TRY(check_submission(batch[i], *ranks, rank));
    const Status call_error = call_error_of(batch[i], *ranks, rank);
    if (call_error.ok()) continue;
    if (batch_with_errors.empty()) batch_with_errors.assign(batch.begin(), batch.end());
    batch_with_errors[i].call_error = call_error.message();
  }
  return {};
}

Status check_and_submit(Engine::Parts& parts, std::span<const Submission> batch,
                        std::span<Handle> handles, std::chrono::milliseconds wait_limit) {
  std::vector<Submission> batch_with_errors;
  FARANDOLE_TRY(check_and_find_call_errors(parts, batch, batch_with_errors));
  if (!batch_with_errors.empty()) batch = batch_with_errors;
  if (batch.empty()) return {};
  if (Completions::is_running_on_this_thread()) wait_limit = {};
  return parts.progress->submit(batch, handles, wait_limit);
}

Status submit_all(Engine::Parts& parts, std::span<const Submission> batch,
                  std::span<Handle> handles, std::chrono::milliseconds wait_limit) {
  const auto failure_text = [&] {
    return format_text("a call of rank {} was not submitted", parts.formation.topology.rank);
  };
  const Status status = catch_bad_alloc(
      failure_text, [&] { return check_and_submit(parts, batch, handles, wait_limit); });
  if (status.code() != StatusCode::kFixCall) return status;
  return Status::fix_call(
      format_text("rank {}: {}", parts.formation.topology.rank, status.message()));
}

Result<std::unique_ptr<Engine>> create_with_known_rank(const EngineOptions& options) {
  FARANDOLE_TRY_ASSIGN(auto connections, open_stores_and_network(options));
  return assemble(options, std::move(connections.stores), std::move(connections.network));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  const auto failure_text = [&] {
    return format_text("rank {} cannot join the job", options.topology.rank);
  };
  FARANDOLE_TRY(check_may_block("Engine::create()"));
  return catch_bad_alloc(failure_text, [&]() -> Result<std::unique_ptr<Engine>> {
    if (!options.context) options.context = make_process_context();
    if (!gets_rank_from_launcher(options)) return create_with_known_rank(options);
    for (int attempt = 1;; ++attempt) {
      EngineOptions options_with_rank = options;
      FARANDOLE_TRY(take_elastic_rank(options_with_rank));
      auto engine = create_with_known_rank(options_with_rank);
      if (engine.ok() || !may_join_again(options, engine.status(), attempt)) return engine;
    }
  });
}

Engine::Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Engine::~Engine() {
  // In a forked child, the engine's threads do not exist, and its locks may be locked forever. So
  // the parts are leaked.
  if (parts_->abandoned) {
    (void)parts_.release();
    return;
  }
  CHECK(!Completions::is_running_on_this_thread(),
        "an engine is not destroyed inside a completion");
  (void)shutdown("shut down");
}

const RankTopology& Engine::topology() const { return parts_->formation.topology; }

std::int64_t Engine::epoch() const { return parts_->epoch; }

bool Engine::is_change_announced() const {
  if (parts_->abandoned || parts_->epoch == 0) return false;
  const std::function<bool()> no_interruption;
  const auto answer =
      parts_->stores.job->wait(keys::change_announced(), {TimePoint{}, no_interruption});
  // If the connection to a Store on another host has ended, a new launcher of node 0 takes over.
  // Then all members must ask that launcher for new ranks, so this function reports a change.
  return answer.ok() || (parts_->network && answer.status().code() != StatusCode::kRetry);
}

bool Engine::is_over() const { return parts_->abandoned || parts_->progress->is_over(kWorld); }

std::vector<int> Engine::ranks_of(GroupId group) const {
  if (parts_->abandoned) return {};
  const auto ranks = parts_->groups->find(group);
  if (!ranks && parts_->groups->lacks_ranks(group))
    return parts_->formation.given_groups[group - 1];
  return ranks ? *ranks : std::vector<int>();
}

Result<GroupId> Engine::add_group(const std::vector<int>& ranks) {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  FARANDOLE_TRY(check_may_block("add_group()"));
  return parts_->groups->add(ranks);
}

Status Engine::remove_group(GroupId group) {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  FARANDOLE_TRY(check_may_block("remove_group()"));
  return parts_->groups->remove(group);
}

Result<Handle> Engine::submit(const Submission& submission, std::chrono::milliseconds wait_limit) {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  Handle handle = 0;
  FARANDOLE_TRY(submit_all(*parts_, {&submission, 1}, {&handle, 1}, wait_limit));
  return handle;
}

Result<std::vector<Handle>> Engine::submit_batch(std::span<const Submission> batch,
                                                 std::chrono::milliseconds wait_limit) {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  std::vector<Handle> handles;
  const auto failure_text = [&] {
    return format_text("a batch of rank {} was not submitted", parts_->formation.topology.rank);
  };
  FARANDOLE_TRY(catch_bad_alloc(failure_text, [&] {
    handles.resize(batch.size());
    return Status();
  }));
  FARANDOLE_TRY(submit_all(*parts_, batch, handles, wait_limit));
  return handles;
}

bool Engine::poll(Handle handle) { return parts_->abandoned || parts_->progress->poll(handle); }

bool Engine::wait(Handle handle, std::chrono::milliseconds limit) {
  if (Completions::is_running_on_this_thread()) return poll(handle);
  return parts_->abandoned || parts_->progress->wait(handle, limit);
}

Outcome Engine::peek(Handle handle) {
  if (parts_->abandoned) return {.status = forked_child_error(parts_->formation.topology.rank)};
  return parts_->progress->peek(handle);
}

Outcome Engine::take(Handle handle) {
  if (parts_->abandoned) return {.status = forked_child_error(parts_->formation.topology.rank)};
  return parts_->progress->take(handle);
}

void Engine::drop(Handle handle) {
  if (!parts_->abandoned) parts_->progress->drop(handle);
}

Result<std::shared_ptr<std::byte>> Engine::allocate(std::size_t bytes) {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  const auto failure_text = [&] {
    return format_text("rank {} cannot allocate {} bytes", parts_->formation.topology.rank, bytes);
  };
  return catch_bad_alloc(failure_text, [&] { return parts_->formation.heap->allocate(bytes); });
}

bool Engine::is_shared(const void* memory, std::size_t bytes) const {
  return !parts_->abandoned && parts_->formation.heap->location_of(memory, bytes).has_value();
}

Status Engine::start_timeline(const std::string& path, bool mark_cycles) {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  FARANDOLE_TRY(check_may_block("start_timeline()"));
  const auto failure_text = [&] {
    return format_text("rank {} has no timeline", parts_->formation.topology.rank);
  };
  return catch_bad_alloc(failure_text, [&]() -> Status {
    FARANDOLE_TRY_ASSIGN(
        const Timeline::Job job,
        timeline_job(parts_->formation, *parts_->stores.job, parts_->elastic_group));
    return parts_->timeline->start(path, job, mark_cycles);
  });
}

Status Engine::stop_timeline() {
  if (parts_->abandoned) return forked_child_error(parts_->formation.topology.rank);
  FARANDOLE_TRY(check_may_block("stop_timeline()"));
  parts_->timeline->stop();
  return {};
}

Status Engine::shutdown(const std::string& reason, LeaveCause cause, const std::string& traceback) {
  if (parts_->abandoned) return {};
  FARANDOLE_TRY(check_may_block("shutdown()"));
  std::call_once(parts_->leave_once, [&] {
    pass(parts_->failpoint, Failpoint::Place::kEngineStopping);
    // After this point, the death of another rank must not change how this rank ends.
    parts_->watch->stop();
    if (parts_->epoch > 0) parts_->context->watch_members(0, {});
    parts_->progress->stop(reason);
    if (parts_->stall_warnings) parts_->stall_warnings->stop();
    pass(parts_->failpoint, Failpoint::Place::kEngineStopped);
    parts_->recorder->record_left(reason, cause, traceback, parts_->clock->now());
    parts_->flight_memory.reservation.reset();  // lets the next engine write to the flight record
    parts_->timeline->close();
    try {
      (*parts_->log)(Level::kInfo, "left the job: " + reason);
    } catch (const std::bad_alloc&) {
      return;  // only the log line is lost
    }
  });
  return {};
}

void Engine::abandon_after_fork() {
  parts_->abandoned = true;
  parts_->watch->abandon_after_fork();
  parts_->timeline->abandon_after_fork();
  if (parts_->channels) parts_->channels->abandon_after_fork();
  parts_->formation.heap->abandon_after_fork();
  parts_->stores = {};  // closes the sockets of the Stores
  for (Peer& peer : parts_->formation.peers) peer.pidfd.reset();
}

}  // namespace farandole
