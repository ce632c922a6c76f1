#include "formation/process_context.h"

#include <fcntl.h>

#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "network/tcp/job_secret.h"
#include "rendezvous/store_client.h"
#include "timeline/flight_record.h"

namespace farandole {

Result<std::shared_ptr<SharedHeap>> ProcessContext::heap(std::size_t bytes) {
  auto parts = parts_.lock();
  auto heap = parts->heap.lock();
  // SharedHeap::create() rounds the size up to whole huge pages.
  if (heap && heap->is_of_this_process() && heap->size() < bytes + kHugePageBytes) return heap;
  FARANDOLE_TRY_ASSIGN(heap, SharedHeap::create(bytes));
  parts->heap = heap;
  return heap;
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
  std::shared_ptr<Store> store = parts_.lock()->job_stores[options.places].lock();
  if (store && store->clock().ok()) return store;  // an answer shows that the connection works
  FARANDOLE_TRY_ASSIGN(store, RemoteStore::connect(options, limit));
  parts_.lock()->job_stores[options.places] = store;
  return store;
}

Result<std::shared_ptr<const TlsContext>> ProcessContext::tls(int secret_descriptor,
                                                              TimePoint deadline) {
  auto parts = parts_.lock();
  if (parts->tls) return parts->tls;
  if (secret_descriptor < 0)
    return Status::fix_call(
        "FARANDOLE_JOB_STORE is set, but FARANDOLE_SECRET_DESCRIPTOR is not; only `farandole run` "
        "sets them, and it sets both");
  ::fcntl(secret_descriptor, F_SETFD, FD_CLOEXEC);
  auto secret = JobSecret::read_descriptor(secret_descriptor, deadline);
  if (!secret.ok())
    return Status::fix_call(format_text(
        "the secret of the job cannot be read from descriptor {} (FARANDOLE_SECRET_DESCRIPTOR): "
        "{}. A wrapper between `farandole run` and this program may close inherited descriptors "
        "(Python's subprocess does unless close_fds=False), or another program may have read the "
        "secret before",
        secret_descriptor, secret.status().message()));
  FARANDOLE_TRY_ASSIGN(parts->tls, TlsContext::make(*std::move(secret)));
  return parts->tls;
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
  memory.segment->close_descriptor();
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

std::shared_ptr<ProcessContext> make_process_context() {
  return std::make_shared<ProcessContext>();
}

}  // namespace farandole
