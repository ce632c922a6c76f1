// The public door's methods: what can be refused at once is refused here, the rest is the loop's.
#include "farandole/engine.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"
#include "engine/assemble.h"
#include "engine/submission_check.h"

namespace farandole {
namespace {

Status forked(int rank) {
  return Status::stop(fmt::format(
      "called in a forked child of rank {}: only the process that called init() can use farandole",
      rank));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  FARANDOLE_TRY_ASSIGN(const auto store, choose_store(options));
  return assemble(options, *store);
}

Engine::Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Engine::~Engine() {
  // The threads of a forked parent do not exist here, nor can their locks be trusted.
  if (parts_->abandoned) {
    (void)parts_.release();
    return;
  }
  shutdown("shut down");
}

const Place& Engine::place() const { return parts_->place; }

std::span<const int> Engine::ranks_of(GroupId group) const {
  const auto& ranks_of = parts_->formation.ranks_of;
  if (group >= ranks_of.size()) return {};
  return ranks_of[group];
}

Result<Handle> Engine::submit(const Submission& submission) {
  if (parts_->abandoned) return forked(parts_->place.rank);
  FARANDOLE_TRY(check_submission(submission, ranks_of(submission.group), parts_->place.rank));
  return parts_->loop->submit(submission);
}

bool Engine::poll(Handle handle) { return parts_->abandoned || parts_->loop->poll(handle); }

bool Engine::wait(Handle handle, std::chrono::milliseconds limit) {
  return parts_->abandoned || parts_->loop->wait(handle, limit);
}

Outcome Engine::take(Handle handle) {
  if (!parts_->abandoned) return parts_->loop->take(handle);
  Outcome outcome;
  outcome.status = forked(parts_->place.rank);
  return outcome;
}

Result<std::shared_ptr<std::byte>> Engine::allocate(std::size_t bytes) {
  if (parts_->abandoned) return forked(parts_->place.rank);
  return parts_->formation.heap->allocate(bytes);
}

void Engine::shutdown(const std::string& reason) {
  if (parts_->abandoned) return;
  std::call_once(parts_->left, [&] {
    // First the others' death must not reach us any more, then we stop writing, then we say so.
    parts_->watch->stop();
    parts_->loop->stop();
    parts_->loop->leave(reason);
    (*parts_->log)(Level::kInfo, "left the job: " + reason);
  });
}

void Engine::abandon_after_fork() {
  parts_->abandoned = true;
  parts_->watch->abandon_after_fork();
  parts_->formation.heap->abandon_after_fork();
  for (Peer& peer : parts_->formation.peers) peer.process.reset();
}

}  // namespace farandole
