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
  auto parts = parts_.lock();
  auto heap = parts->heap.lock();
  // SharedHeap::create() rounds the size up to whole huge pages.
  if (heap && heap->is_of_this_process() && heap->size() < bytes + kHugePageBytes) return heap;
  FARANDOLE_TRY_ASSIGN(heap, SharedHeap::create(bytes));
  parts->heap = heap;
  return heap;
}

void ProcessContext::make_continued_timeline(int slot, const Knobs& knobs) {
  auto parts = parts_.lock();
  if (parts->continued_timeline) return;
  const TraceText::Rank rank{
      .rank = slot, .pid = ::getpid(), .elastic_worker = knobs.elastic_worker};
  parts->continued_timeline = std::make_shared<Timeline::Continued>(
      TraceText(rank), knobs.timeline_path, knobs.timeline_mark_cycles);
}

// Engines share the connection, because two clients on one socket would read each other's replies.
Result<std::shared_ptr<LocalStore>> ProcessContext::launcher_store(int descriptor) {
  auto parts = parts_.lock();
  std::shared_ptr<LocalStore> store = parts->stores[descriptor].lock();
  if (store) return store;
  FARANDOLE_TRY_ASSIGN(store, StoreClient::connect(descriptor));
  parts->stores[descriptor] = store;
  return store;
}

// Does not hold the lock while it connects, because limit.interrupted may wait for a thread that
// waits for the lock. If two threads connect at once, both connections work.
Result<std::shared_ptr<Store>> ProcessContext::job_store(const RemoteStore::Options& options,
                                                         const WaitLimit& limit) {
  if (auto known = known_job_store(options.places)) return known;
  FARANDOLE_TRY_ASSIGN(std::shared_ptr<Store> store, RemoteStore::connect(options, limit));
  parts_.lock()->job_stores[options.places] = store;
  return store;
}

Result<std::shared_ptr<Store>> ProcessContext::serve_job_store(const RemoteStore::Options& options,
                                                               const InterfaceChoice& interfaces,
                                                               const WaitLimit& limit) {
  if (auto known = known_job_store(options.places)) return known;
  FARANDOLE_TRY_ASSIGN(auto store, open_hosted_store(options, interfaces, limit));
  auto parts = parts_.lock();
  parts->served_store = store;
  parts->served_places = options.places;
  return store;
}

Status ProcessContext::wait_for_other_ranks(const std::function<bool()>& interrupted) {
  const std::shared_ptr<Store> store = parts_.lock()->served_store;
  return store ? farandole::wait_for_other_ranks(*store, interrupted) : Status();
}

std::shared_ptr<Store> ProcessContext::known_job_store(const std::string& places) {
  std::shared_ptr<Store> store;
  {
    auto parts = parts_.lock();
    if (parts->served_places == places) return parts->served_store;
    store = parts->job_stores[places].lock();
  }
  const bool works = store && store->clock().ok();  // an answer shows that the connection works
  return works ? store : nullptr;
}

Result<std::shared_ptr<const TlsContext>> ProcessContext::tls(const Knobs& knobs,
                                                              TimePoint deadline) {
  auto parts = parts_.lock();
  if (parts->tls) return parts->tls;
  FARANDOLE_TRY_ASSIGN(auto secret, read_secret(knobs, deadline));
  FARANDOLE_TRY_ASSIGN(parts->tls, TlsContext::make(std::move(secret)));
  return parts->tls;
}

Status ProcessContext::watch_launcher(int descriptor) {
  auto parts = parts_.lock();
  if (parts->launcher_watch) return {};
  FARANDOLE_TRY_ASSIGN(parts->launcher_watch, LauncherWatch::start(descriptor));
  return {};
}

void ProcessContext::watch_members(std::int64_t epoch, std::function<void(int rank)> handler) {
  const std::shared_ptr<LauncherWatch> watch = parts_.lock()->launcher_watch;
  if (watch) watch->watch_members(epoch, std::move(handler));
}

std::string ProcessContext::announced_end(TimePoint deadline) {
  const std::shared_ptr<LauncherWatch> watch = parts_.lock()->launcher_watch;
  return watch ? watch->announced_end(deadline) : "";
}

Result<std::shared_ptr<Failpoint>> ProcessContext::failpoint(const std::string& text) {
  auto parts = parts_.lock();
  if (text == parts->failpoint_text) return parts->failpoint;
  FARANDOLE_TRY_ASSIGN(parts->failpoint, Failpoint::parse(text));
  parts->failpoint_text = text;
  return parts->failpoint;
}

Result<FlightMemory> ProcessContext::flight_memory(int descriptor) {
  auto parts = parts_.lock();
  FlightMemory memory;
  if (descriptor >= 0 && parts->flight_reservations[descriptor].expired()) {
    FARANDOLE_TRY_ASSIGN(memory.segment, attach_flight_memory(descriptor));
    parts->flight_reservations[descriptor] = memory.reservation = std::make_shared<char>();
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
  const bool waits = limit.count() > 0;
  return context.announced_end(waits ? std::chrono::steady_clock::now() + limit : TimePoint());
}

std::shared_ptr<ProcessContext> make_process_context() {
  return std::make_shared<ProcessContext>();
}

}  // namespace farandole
