// ProcessContext: finds what the engines of one process share. It owns none of these parts: each is
// destroyed with the last engine or tensor that uses it. Only the job's secret stays, because it
// can be read only once.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/guarded.h"
#include "farandole/engine.h"
#include "network/tcp/tls_session.h"
#include "rendezvous/local_store.h"
#include "rendezvous/remote_store.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// The memory of an engine's flight record.
struct FlightMemory {
  std::shared_ptr<Segment> segment;  // has no other owner
  std::shared_ptr<void>
      reservation;  // while this exists, no other engine of the process writes there
};

// Any thread may call its functions.
class ProcessContext {
 public:
  // Returns the heap that engines or tensors of this process already use. Creates a new heap if
  // there is none, or if the heap in use is larger than `bytes`, because peers might not be able to
  // map that heap. Engines and allocated blocks own the heap. Errors: as SharedHeap::create().
  Result<std::shared_ptr<SharedHeap>> heap(std::size_t bytes);
  // Returns the connection to the launcher. The engines that use the connection own it. Errors: as
  // StoreClient::connect().
  Result<std::shared_ptr<LocalStore>> launcher_store(int descriptor);
  // Returns the connection to the job's Store at options.places. The engines that use the
  // connection own it. Errors: as RemoteStore::connect().
  Result<std::shared_ptr<Store>> job_store(const RemoteStore::Options& options,
                                           const WaitLimit& limit);
  // Returns the secret of the job, ready for connections. The first call reads it from the
  // descriptor, and waits for it until the deadline; later calls return the same. Errors: kFixCall
  // (no descriptor, or not 32 bytes), kStop.
  Result<std::shared_ptr<const TlsContext>> tls(int secret_descriptor, TimePoint deadline);
  // Returns the launcher's memory. Without a descriptor (−1), or while another engine writes there,
  // returns private memory instead. Errors: kFixCall, kStop.
  Result<FlightMemory> flight_memory(int descriptor);

 private:
  struct Parts {
    std::weak_ptr<SharedHeap> heap;
    std::map<int, std::weak_ptr<LocalStore>> stores;         // by descriptor
    std::map<std::string, std::weak_ptr<Store>> job_stores;  // by RemoteStore::Options::places
    std::map<int, std::weak_ptr<void>> flight_reservations;  // by descriptor
    std::shared_ptr<const TlsContext> tls;                   // also owned by connections
  };

  Guarded<Parts> parts_;
};

// Maps the launcher's memory for a rank's flight record. Errors: kFixCall if the descriptor does
// not refer to such memory.
Result<std::shared_ptr<Segment>> attach_flight_memory(int descriptor);

}  // namespace farandole
