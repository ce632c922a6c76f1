#include "formation/process_context.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "network/tcp/job_secret.h"
#include "rendezvous/hosted_store.h"
#include "rendezvous/store_client.h"
#include "timeline/flight_record.h"

namespace farandole {
namespace {

Result<JobSecret> read_secret_file(const std::string& path) {
  auto secret = JobSecret::read_file(path);
  if (secret.status().code() != StatusCode::kFixCall) return secret;
  return Status::fix_call(format_text("FARANDOLE_SECRET: {}", secret.status().message()));
}

Result<JobSecret> read_secret(const Knobs& knobs, TimePoint deadline) {
  const int descriptor = knobs.secret_descriptor;
  if (descriptor < 0 && !knobs.secret_file.empty()) return read_secret_file(knobs.secret_file);
  if (descriptor < 0) {
    return Status::fix_call(
        "FARANDOLE_JOB_STORE is set, but there is no secret. If another launcher has started the "
        "ranks, set FARANDOLE_SECRET to a file of `farandole secret`; `farandole run` sets "
        "FARANDOLE_SECRET_DESCRIPTOR");
  }
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  auto secret = JobSecret::read_descriptor(descriptor, deadline);
  if (secret.ok()) return secret;
  return Status::fix_call(format_text(
      "the secret of the job cannot be read from descriptor {} (FARANDOLE_SECRET_DESCRIPTOR): {}. "
      "A wrapper between `farandole run` and this program may close inherited descriptors "
      "(Python's subprocess does unless close_fds=False), or another program may have read the "
      "secret before",
      descriptor, secret.status().message()));
}

}  // namespace

Result<std::shared_ptr<SharedHeap>> ProcessContext::heap(std::size_t bytes) {
  auto state = state_.lock();
  auto heap = state->heap.lock();
  // SharedHeap::create() rounds the size up to whole huge pages.
  if (heap && heap->is_of_this_process() && heap->size() < bytes + kHugePageBytes) return heap;
  FARANDOLE_TRY_ASSIGN(heap, SharedHeap::create(bytes));
  state->heap = heap;
  return heap;
}

void ProcessContext::make_timeline_state(int slot, const Knobs& knobs) {
  auto state = state_.lock();
  if (state->timeline_state) return;
  const TraceText::Rank rank{
      .rank = slot, .pid = ::getpid(), .elastic_worker = knobs.elastic_worker};
  state->timeline_state = std::make_shared<Timeline::SharedState>(
      TraceText(rank), knobs.timeline_path, knobs.timeline_mark_cycles);
}

// Engines share one connection, because two clients on one socket would read each other's replies.
Result<std::shared_ptr<LocalStore>> ProcessContext::launcher_store(int descriptor) {
  auto state = state_.lock();
  std::shared_ptr<LocalStore> store = state->stores[descriptor].lock();
  if (store) return store;
  FARANDOLE_TRY_ASSIGN(store, StoreClient::connect(descriptor));
  state->stores[descriptor] = store;
  return store;
}

// Does not hold the lock while it connects, because limit.interrupted may wait for another thread
// that needs the lock. If two threads connect at the same time, both connections work.
Result<std::shared_ptr<Store>> ProcessContext::job_store(const RemoteStore::Options& options,
                                                         const WaitLimit& limit) {
  if (auto existing_store = existing_job_store(options.places)) return existing_store;
  FARANDOLE_TRY_ASSIGN(std::shared_ptr<Store> store, RemoteStore::connect(options, limit));
  state_.lock()->job_stores[options.places] = store;
  return store;
}

Result<std::shared_ptr<Store>> ProcessContext::serve_job_store(const RemoteStore::Options& options,
                                                               const InterfaceChoice& interfaces,
                                                               const WaitLimit& limit) {
  if (auto existing_store = existing_job_store(options.places)) return existing_store;
  FARANDOLE_TRY_ASSIGN(auto store, open_hosted_store(options, interfaces, limit));
  auto state = state_.lock();
  state->served_store = store;
  state->served_places = options.places;
  return store;
}

Status ProcessContext::wait_for_other_ranks(const std::function<bool()>& interrupted) {
  const std::shared_ptr<Store> store = state_.lock()->served_store;
  return store ? farandole::wait_for_other_ranks(*store, interrupted) : Status();
}

std::shared_ptr<Store> ProcessContext::existing_job_store(const std::string& places) {
  std::shared_ptr<Store> store;
  {
    auto state = state_.lock();
    if (state->served_places == places) return state->served_store;
    store = state->job_stores[places].lock();
  }
  // If the Store answers clock(), the connection works.
  const bool is_connected = store && store->clock().ok();
  return is_connected ? store : nullptr;
}

Result<std::shared_ptr<const TlsContext>> ProcessContext::tls_context(const Knobs& knobs,
                                                                      TimePoint deadline) {
  auto state = state_.lock();
  if (state->tls) return state->tls;
  FARANDOLE_TRY_ASSIGN(auto secret, read_secret(knobs, deadline));
  FARANDOLE_TRY_ASSIGN(state->tls, TlsContext::make(std::move(secret)));
  return state->tls;
}

Status ProcessContext::watch_launcher(int descriptor) {
  auto state = state_.lock();
  if (state->launcher_watch) return {};
  FARANDOLE_TRY_ASSIGN(state->launcher_watch, LauncherWatch::start(descriptor));
  return {};
}

void ProcessContext::watch_members(std::int64_t epoch, std::function<void(int rank)> handler) {
  const std::shared_ptr<LauncherWatch> watch = state_.lock()->launcher_watch;
  if (watch) watch->watch_members(epoch, std::move(handler));
}

std::string ProcessContext::announced_end(TimePoint deadline) {
  const std::shared_ptr<LauncherWatch> watch = state_.lock()->launcher_watch;
  return watch ? watch->announced_end(deadline) : "";
}

Result<std::shared_ptr<Failpoint>> ProcessContext::failpoint(const std::string& text) {
  auto state = state_.lock();
  if (text == state->failpoint_text) return state->failpoint;
  FARANDOLE_TRY_ASSIGN(state->failpoint, Failpoint::parse(text));
  state->failpoint_text = text;
  return state->failpoint;
}

Result<FlightMemory> ProcessContext::flight_memory(int descriptor) {
  auto state = state_.lock();
  FlightMemory memory;
  if (descriptor >= 0 && state->flight_reservations[descriptor].expired()) {
    FARANDOLE_TRY_ASSIGN(memory.segment, attach_flight_memory(descriptor));
    state->flight_reservations[descriptor] = memory.reservation = std::make_shared<char>();
    return memory;
  }
  FARANDOLE_TRY_ASSIGN(memory.segment,
                       Segment::create("farandole-flight-record", FlightRecorder::bytes_needed()));
  return memory;
}

Result<std::shared_ptr<Segment>> attach_flight_memory(int descriptor) {
  Descriptor borrowed(descriptor);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  auto segment = Segment::attach(borrowed, FlightRecorder::bytes_needed());
  (void)borrowed.release();
  if (segment.ok()) return segment;
  return Status::fix_call(format_text(
      "FARANDOLE_FLIGHT_RECORD_DESCRIPTOR is {}, which is not the launcher's memory ({}); only "
      "`farandole run` sets it, and a program that a worker starts must not join its job",
      descriptor, segment.status().message()));
}

Status wait_for_other_ranks(ProcessContext& context, const std::function<bool()>& interrupted) {
  return context.wait_for_other_ranks(interrupted);
}

void set_has_state(ProcessContext& context) { context.set_has_state(); }

std::string announced_end(ProcessContext& context, std::chrono::milliseconds limit) {
  const bool may_wait = limit.count() > 0;
  return context.announced_end(may_wait ? std::chrono::steady_clock::now() + limit : TimePoint());
}

std::shared_ptr<ProcessContext> make_process_context() {
  return std::make_shared<ProcessContext>();
}

}  // namespace farandole
